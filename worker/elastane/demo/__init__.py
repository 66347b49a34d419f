"""`elastane demo`: the main job under real faults beside stock DDP, compared bit for bit."""
