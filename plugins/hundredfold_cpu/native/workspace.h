// Memory that a thread keeps from call to call, so that none is asked for in steady state.
#pragma once

#include <cstddef>

enum class Workspace { INPUTS, PANEL, COUNT };

// At least `bytes`, aligned to a line of the cache; what it held before may be gone. Ends the process when the system
// has none left, as it would at the first touch of memory that it had promised.
void* workspace(Workspace kind, size_t bytes);
