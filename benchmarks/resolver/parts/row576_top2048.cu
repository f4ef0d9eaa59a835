// Rows of 576 bytes, top-k 2048.
#include "../part.hpp"

static bool const offered = bench::offer<bench::subject_policy<576, 0, 2048, 1>>();
