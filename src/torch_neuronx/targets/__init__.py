"""Where a compiled graph goes. Today there is one target, the emulated chip."""
