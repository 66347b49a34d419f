"""Jobs whose model is cut into units: `Job.prepare_pipeline` in every mode."""
