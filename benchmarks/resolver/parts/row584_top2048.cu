// Rows of 584 bytes (576 and 8 at the page end), top-k 2048.
#include "../part.hpp"

static bool const offered = bench::offer<bench::subject_policy<576, 8, 2048, 1>>();
