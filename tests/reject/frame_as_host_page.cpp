// expect: host_page_id
#include <ebb/ids.hpp>

constexpr ebb::frame_id frame{3};
constexpr ebb::map_entry entry{.frame = frame, .host = frame};
