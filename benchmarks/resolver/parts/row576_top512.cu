// Rows of 576 bytes, top-k 512.
#include "../part.hpp"

static bool const offered = bench::offer<bench::subject_policy<576, 0, 512, 1>>();
