"""Pipeline jobs, whose model is divided into units: `Job.prepare_pipeline` in every mode."""
