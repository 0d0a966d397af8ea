"""The native library's place: ``libs/libtaskd.so`` is what start scripts preload."""
