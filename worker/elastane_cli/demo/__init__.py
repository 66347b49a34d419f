"""`elastane demo`: a job under real faults compared with stock DDP, bit for bit."""
