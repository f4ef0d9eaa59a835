// Rows of 288 bytes (256 and 32 at the page end), top-k 2048.
#include "../part.hpp"

static bool const offered = bench::offer<bench::subject_policy<256, 32, 2048, 1>>();
