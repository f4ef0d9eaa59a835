// Rows of 656 bytes, top-k 2048.
#include "../part.hpp"

static bool const offered = bench::offer<bench::subject_policy<656, 0, 2048, 1>>();
