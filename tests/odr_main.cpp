#include <ebb/ebb.hpp>

int main() {}
