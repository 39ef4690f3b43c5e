// Runs a list of calls, one after the other.
#include <cstdint>

// Mirrored by hundredfold_cpu/program.py.
struct Call {
  void (*function)(const int64_t* words);
  int64_t* words;
  int64_t rows_at;  // which word is the number of rows; negative for none
};

extern "C" __attribute__((visibility("default"))) void hf_run(const Call* calls, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < count; ++i) {
    const Call& call = calls[i];
    if (call.rows_at >= 0) call.words[call.rows_at] = rows;
    call.function(call.words);
  }
}
