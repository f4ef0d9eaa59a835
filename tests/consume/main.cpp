// A stranger's program: includes ebb and nothing else of it.
#include <ebb/ebb.hpp>

int main() {}
