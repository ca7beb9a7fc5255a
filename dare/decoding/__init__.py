"""One decoding engine with plug-in parts."""
