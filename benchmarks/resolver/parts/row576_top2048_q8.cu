// Rows of 576 bytes, top-k 2048, up to 8 queries a request.
#include "../part.hpp"

static bool const offered = bench::offer<bench::subject_policy<576, 0, 2048, 8>>();
