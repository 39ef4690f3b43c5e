// Instead of native/processor.cpp: emulated instructions run on every processor.
extern "C" __attribute__((visibility("default"))) int hf_supports(const char*) { return 1; }
