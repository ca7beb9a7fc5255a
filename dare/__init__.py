"""The science of diffusion language models."""
