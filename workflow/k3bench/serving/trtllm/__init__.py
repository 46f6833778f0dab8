"""TensorRT-LLM as a served engine: its command lines, its YAML file, its life as a Slurm step. Nothing imports it."""
