// Memory that is kept from call to call, so that none is asked for in steady state.
#pragma once

#include <cstddef>

enum class Workspace { INPUTS, PANEL, RESULT, SCRATCH, COUNT };

// The calling thread's: at least `bytes`, aligned to a line of the cache; what it held before may be gone. Ends the process
// when the system has none left, as it would at the first touch of memory that it had promised.
void* workspace(Workspace kind, size_t bytes);
// The team's, the same for all its threads, and for every size.
void* team_workspace(size_t bytes);
