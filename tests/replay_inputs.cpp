/// What the replay reads, believes and writes: options, traces, arrivals, selections and their stretching, the cost
/// model, the oracle, files, sessions that never fit.

#include <ebb/host/serial_space.hpp>

#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <sys/resource.h>
#include <thread>

#include "../examples/replay/arrivals.hpp"
#include "../examples/replay/bodies.hpp"
#include "../examples/replay/cost.hpp"
#include "../examples/replay/driver.hpp"
#include "../examples/replay/options.hpp"
#include "../examples/replay/oracle.hpp"
#include "../examples/replay/output.hpp"
#include "../examples/replay/report.hpp"
#include "../examples/replay/requests.hpp"
#include "../examples/replay/selections.hpp"
#include "../examples/replay/trace.hpp"
#include "../examples/replay/workload.hpp"

namespace {

/// A folder that is removed with what the test wrote into it.
struct scratch_folder {
  std::filesystem::path path;
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ebb_replay_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~scratch_folder() { std::filesystem::remove_all(path); }
  std::string file(std::string const& name, std::string const& text) const {
    std::ofstream{path / name, std::ios::binary} << text;
    return (path / name).string();
  }
  std::string text(std::string const& name) const {
    std::ifstream in{path / name, std::ios::binary};
    return {std::istreambuf_iterator<char>{in}, {}};
  }
  std::ptrdiff_t files() const { return std::distance(std::filesystem::directory_iterator{path}, {}); }
};

/// Packs a file, and names the result.
std::string zipped(std::string const& path) {
  REQUIRE(replay::process{{"gzip", "-f", path}}.wait());
  return path + ".gz";
}

/// The message that `read` ends with, without the folder; "" if it does not fail.
template <class Read>
std::string message_of(scratch_folder const& folder, Read read) {
  try {
    read();
  } catch (replay::input_error const& e) {
    std::string text = e.what();
    std::string const prefix = folder.path.string() + "/";
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }
  return "";
}

std::string const header = std::string{replay::trace_header} + "\n";
std::string const first = "t1,0,0,0.0,130,7,1.5,0.0,0,2,64,10,5\n";

}  // namespace

TEST_CASE("sessions are read by trace and thread, plain or gzipped") {
  scratch_folder const folder;
  std::string const text =
      header + first + "t1,0.s1,0,1.0,64,3,,,0,1,64,10,5\n" + "t1,0,1,9.5,200,4,1.0,2.5,2,3,64,10,5\r\n";
  std::string const packed = zipped(folder.file("trace.csv", text));
  for (auto const& path : {folder.file("trace.csv", text), packed}) {
    auto const sessions = replay::read_sessions(path);
    REQUIRE(sessions.size() == 2);
    CHECK(sessions[0].name == "t1/0");
    REQUIRE(sessions[0].calls.size() == 2);
    CHECK(sessions[0].calls[1].in_tokens == 200);
    CHECK(sessions[0].calls[1].out_tokens == 4);
    CHECK(sessions[0].calls[1].prefix == 128);
    CHECK(sessions[0].calls[1].at == 9.5);
    CHECK(sessions[0].calls[1].pause == 2.5);
    CHECK(sessions[1].name == "t1/0.s1");
  }
}

TEST_CASE("a bad line of a trace is named with its number and what was expected") {
  scratch_folder const folder;
  auto const message = [&](std::string const& text) {
    return message_of(folder, [&] { replay::read_sessions(folder.file("t.csv", text)); });
  };
  CHECK(message(header + first) == "");
  CHECK(message("a,b\n").starts_with("t.csv:1: expected the header 'trace,thread,"));
  CHECK(message("").starts_with("t.csv: expected the header"));
  CHECK(message(header) == "t.csv:1: expected at least one call after the header");
  CHECK(message(header + first + "t1,0,1\n") == "t.csv:3: expected 13 comma-separated fields, found 3");
  CHECK(message(header + first + "\n") == "t.csv:3: expected 13 comma-separated fields, found 1");
  CHECK(message(header + "t1,0,0,0.0,13x,7,1.5,0.0,0,2,64,10,5\n") ==
        "t.csv:2: expected in_tokens to be a number from 128 to 2147483648, found '13x'");
  CHECK(message(header + "t1,0,0,0.0,100,7,1.5,0.0,0,2,64,10,5\n")
            .starts_with("t.csv:2: expected in_tokens to be a number from 128"));
  CHECK(message(header + "t1,0,0,0.0,130,-1,1.5,0.0,0,2,64,10,5\n")
            .starts_with("t.csv:2: expected out_tokens to be a number from 0"));
  CHECK(message(header + "t1,0,0,nan,130,1,1.5,0.0,0,2,64,10,5\n")
            .starts_with("t.csv:2: expected t_s to be a number from 0"));
  CHECK(message(header + "t1,0,0,0.0,130,7,1.5,0.0,3,2,64,10,5\n")
            .starts_with("t.csv:2: expected lcp_blocks to be a number from 0 to 2"));
  CHECK(message(header + "t1,0,0,0.0,130,7,1.5,0.0,1,2,64,10,5\n")
            .starts_with("t.csv:2: expected lcp_blocks to be at most 0"));
  CHECK(message(header + first + first) == "t.csv:3: expected idx 1 of session t1/0, found '0'");
  CHECK(message(header + first + "t1,0,1,-1,130,7,1.5,0.0,0,2,64,10,5\n").starts_with("t.csv:3: expected t_s"));
  CHECK(message(header + ",0,0,0.0,130,7,1.5,0.0,0,2,64,10,5\n")
            .starts_with("t.csv:2: expected trace and thread to be named"));
  CHECK(message(header + std::string(70'000, 'x')).starts_with("t.csv:2: expected lines of at most"));
  CHECK(message_of(folder, [&] { replay::read_sessions((folder.path / "none.csv").string()); }) ==
        "none.csv: cannot be opened for reading");
  CHECK(message_of(folder, [&] { replay::read_sessions(folder.path.string()); }).find("cannot be read") !=
        std::string::npos);
}

TEST_CASE("a damaged gzip file is refused") {
  scratch_folder const folder;
  std::string text = header + first;
  for (int i = 0; i < 2'000; ++i) text += "t" + std::to_string(i * i + 2) + ",0,0,0.0,130,7,1.5,0.0,0,2,64,10,5\n";
  std::string const path = zipped(folder.file("t.csv", text));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  CHECK(message_of(folder, [&] { replay::read_sessions(path); }).find("cannot be read on") != std::string::npos);
}

TEST_CASE("Azure and Mooncake arrivals are seconds since the first, Mooncake's ticks spread") {
  scratch_folder const folder;
  std::string const azure_header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  auto const azure = replay::read_arrivals(
      folder.file("a.csv", azure_header + "2023-11-30 23:59:59.5000000,10,1\n2023-12-01 00:00:01.2500000,10,1\n"));
  CHECK(azure.title == "Azure");
  REQUIRE(azure.seconds.size() == 2);
  CHECK(azure.seconds[1] == doctest::Approx(1.75));
  auto const mooncake =
      replay::read_arrivals(folder.file("m.jsonl",
                                        "{\"timestamp\": 3000}\n{\"timestamp\": 3000}\n{\"timestamp\": "
                                        "3000}\n{\"timestamp\": 9000, \"input_length\": 4}\n"));
  CHECK(mooncake.title == "Mooncake");
  CHECK(mooncake.seconds == std::vector<double>{0, 1, 2, 6});
  auto const message = [&](std::string const& text) {
    return message_of(folder, [&] { replay::read_arrivals(folder.file("x", text)); });
  };
  CHECK(message("time\n").starts_with("x:1: expected the header 'TIMESTAMP,"));
  CHECK(message(azure_header) == "x:1: expected at least one arrival");
  CHECK(message(azure_header + "2023-11-31 00:00:00.0,1,1\n").starts_with("x:2: expected a time like"));
  CHECK(message(azure_header + "2023-11-30 00:00:00.0,1\n") == "x:2: expected 3 comma-separated fields, found 2");
  CHECK(message(azure_header + "2023-11-30 00:00:01,1,1\n2023-11-30 00:00:00,1,1\n")
            .starts_with("x:3: expected a time not before"));
  CHECK(message("{\"timestamp\": 1}\n{\"timestamp\": \"2\"}\n").starts_with("x:2: expected a JSON object"));
}

namespace {

/// Two layers of 4 steps × 3 positions in a context of 2,048; step s asks from 2,044 + s.
constexpr char const* shape = R"({"context": 2048, "first_step": 2044, "steps": 4, "layers": [1, 5], "k": 3})";
std::string words(std::vector<int> const& values) {
  std::string out;
  for (int v : values) out += {static_cast<char>(v & 255), static_cast<char>(v >> 8)};
  return out;
}
std::vector<int> const recorded{2044, 1021, 1020, 2045, 1022, 0, 2046, 64, 63, 2047, 1023, 700,
                                0,    1,    2,    3,    4,    5, 6,    7,  8,  9,    10,   11};

}  // namespace

TEST_CASE("selections are read layer by layer and refused when they cannot be right") {
  scratch_folder const folder;
  auto const json = folder.file("s.json", shape);
  folder.file("s.u16", words(recorded));
  auto const layers = replay::read_selections((folder.path / "s.u16").string());
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].step(1)[1] == 1022);
  CHECK(layers[1].step(3)[2] == 11);
  auto const message = [&] { return message_of(folder, [&] { replay::read_selections(json); }); };
  CHECK(message() == "");
  auto bad = recorded;
  bad[3] = 2046;
  folder.file("s.u16", words(bad));
  CHECK(message() == "s.u16: expected positions up to 2045 in layer 0, step 1, found 2046");
  folder.file("s.u16", "short");
  CHECK(message() == "s.u16: expected 48 bytes, found 5");
  folder.file("s.json", R"({"context": 2048})");
  CHECK(message().starts_with("s.json: expected \"first_step\""));
  folder.file("s.json", "{");
  CHECK(message().starts_with("s.json: expected \"context\""));
}

TEST_CASE("stretching keeps the newest 1,024 at their distance and spreads older pages evenly") {
  scratch_folder const folder;
  auto const json = folder.file("s.json", shape);
  folder.file("s.u16", words(recorded));
  auto const layers = replay::read_selections(json);
  std::array<std::int32_t, 3> out{};

  // The first query asks from 10,000. Of the recording, 1,021 … 2,044 are the newest 1,024; 0 … 1,020 are 16 pages, the
  // last of 61 rows. The older 10,000 − 1,023 = 8,977 positions are 140 whole pages: page p goes to ⌊p · 140 / 16⌋.
  replay::stretched_selection const far{layers[0], 10'000};
  CHECK(far(10'000, out) == 3);
  CHECK(out == std::array<std::int32_t, 3>{10'000, 8'977, 131 * 64 + 60});  // page 15 → 131
  CHECK(far(10'001, out) == 3);
  CHECK(out == std::array<std::int32_t, 3>{10'001, 8'978, 0});
  CHECK(far(10'002, out) == 3);
  CHECK(out == std::array<std::int32_t, 3>{10'002, 8 * 64, 63});  // page 1 → 8
  CHECK(far(10'003, out) == 3);
  CHECK(out == std::array<std::int32_t, 3>{10'003, 8'979, 87 * 64 + 60});  // 1,023 keeps its distance; page 10 → 87
  // Past the last step it plays backwards, then forwards; the newest keep their distance, the page map stays.
  CHECK(far(10'004, out) == 3);
  CHECK(out == std::array<std::int32_t, 3>{10'004, 8'980, 87 * 64 + 60});
  CHECK(far(10'007, out) == 3);
  CHECK(out == std::array<std::int32_t, 3>{10'007, 8'984, 131 * 64 + 60});
  CHECK(far(10'008, out) == 3);
  CHECK(out == std::array<std::int32_t, 3>{10'008, 8'985, 131 * 64 + 60});

  // A history as long as the recorded one is played as it is.
  replay::stretched_selection const same{layers[0], 2'047};
  CHECK(same(2'047, out) == 3);
  CHECK(out == std::array<std::int32_t, 3>{2'047, 1'024, 1'020});

  // In a shorter one positions past the end are dropped.
  replay::stretched_selection const near{layers[0], 1'020};
  CHECK(near(1'020, out) == 1);
  CHECK(out == std::array<std::int32_t, 3>{-1, -1, 1'020});
  CHECK(near(1'021, out) == 1);
  CHECK(out == std::array<std::int32_t, 3>{-1, -1, 0});
  CHECK(near(1'023, out) == 2);
  CHECK(out == std::array<std::int32_t, 3>{-1, 1'023, 700});

  // Fewer than k: the best ones.
  CHECK(far(10'000, std::span{out}.first(1)) == 1);
  CHECK(out[0] == 10'000);
}

TEST_CASE("the recording turns around at both ends") {
  std::vector<int> steps;
  for (int i = 0; i < 10; ++i) steps.push_back(replay::stretched_selection::recorded_step(i, 4));
  CHECK(steps == std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0, 0, 1});
}

TEST_CASE("a stretched selection never names a position twice, nor one after its query") {
  replay::recording r{"all", 8'192, 7'936, 4, 7'936, {}};
  for (int s = 0; s < 4; ++s) {
    for (int p = 0; p < r.k; ++p) r.positions.push_back(static_cast<std::uint16_t>(p + s));
  }
  for (std::int64_t first : {8'191LL, 8'192LL, 9'000LL, 123'457LL, 1'000'000LL}) {
    replay::stretched_selection const at{r, first};
    std::vector<std::int32_t> out(static_cast<std::size_t>(r.k));
    for (std::int64_t now = first; now < first + 9; ++now) {
      CHECK(at(now, out) == r.k);
      std::set<std::int32_t> const distinct{out.begin(), out.end()};
      CHECK(distinct.size() == out.size());
      CHECK(*distinct.begin() >= 0);
      CHECK(*distinct.rbegin() <= now);
    }
  }
}

TEST_CASE("a workload takes calls around the middle, caps them and starts sessions at arrivals") {
  std::vector<replay::session> sessions{{"a", {}}, {"b", {}}};
  for (int i = 0; i < 6; ++i) sessions[0].calls.push_back({1'000 + 100 * i, 500, 64 * i, 10.0 * i, 7.0});
  sessions[1].calls = {{100, 5, 0, 0, 0}, {9'000, 5, 64, 1, 0.5}};
  replay::arrival_times const arrivals{"Azure", {0, 1, 2, 3, 4, 5, 6}};
  std::vector<replay::recording> const selections(1);
  auto const w = replay::compose(sessions, arrivals, selections,
                                 {.sessions = 2,
                                  .calls = 2,
                                  .max_out = 128,
                                  .max_pause = 5,
                                  .arrivals_from = 1,
                                  .arrivals_every = 3,
                                  .arrivals_speed = 2,
                                  .max_tokens = 4'000,
                                  .queries = 1});
  REQUIRE(w.plays.size() == 2);
  CHECK(w.too_long == 1);
  REQUIRE(w.plays[0].calls.size() == 2);
  CHECK(w.plays[0].calls[0].in_tokens == 1'200);
  CHECK(w.plays[0].calls[0].prefix == 0);
  CHECK(w.plays[0].calls[1].prefix == 192);
  CHECK(w.plays[0].calls[1].out_tokens == 128);
  CHECK(w.plays[0].calls[1].pause == 5);
  CHECK(w.plays[0].tokens_max == 1'300 + 128 + 1);
  CHECK(w.plays[0].arrival == 0);
  CHECK(w.plays[1].arrival == 1.5);
  CHECK(w.plays[1].calls.size() == 1);
  CHECK_THROWS_AS(replay::compose(sessions, arrivals, selections, {.sessions = 2, .arrivals_from = 6}),
                  std::invalid_argument);
  CHECK_THROWS_AS(
      replay::compose(sessions, arrivals, selections, {.sessions = 2, .arrivals_from = 0, .max_tokens = 50}),
      std::invalid_argument);
}

TEST_CASE("a step takes what its own work takes or what the link needs, whichever is longer") {
  replay::cost_model const m{.base_us = 1'000,
                             .per_request_us = 10,
                             .launch_us = 2,
                             .launches = 3,
                             .read_us = 1,
                             .gather_gbs = 40,
                             .copy_in_gbs = 50,
                             .copy_out_gbs = 25,
                             .groups = 4,
                             .sources = 2};
  CHECK(m.step_seconds({}) == doctest::Approx(24e-6));
  CHECK(m.step_seconds({.requests = 5}) == doctest::Approx(1'074e-6));
  // 4 groups gather 400,000 bytes at 40 GB/s: 10 µs each, and wait once for a read.
  CHECK(m.step_seconds({.requests = 5, .fetches = true, .fetched_bytes = 400'000}) == doctest::Approx(1'118e-6));
  // 2 sources × 50 MB in at 50 GB/s, 4 × 0.4 MB fetched on the same link.
  CHECK(m.step_seconds(
            {.fetches = true, .fetched_bytes = 400'000, .refilled_bytes = 30'000'000, .imported_bytes = 20'000'000}) ==
        doctest::Approx(2'032e-6));
  CHECK(m.step_seconds({.backed_up_bytes = 50'000'000}) == doctest::Approx(4'000e-6));
}

TEST_CASE("rows with distinct names have distinct bytes everywhere") {
  std::set<std::uint64_t> seeds;
  for (std::uint32_t request : {1u, 2u, 0xffffeu}) {
    for (std::uint32_t source : {0u, 1u, 62u}) {
      for (std::uint32_t position : {0u, 1u, 64u, 4'194'303u}) {
        for (std::uint32_t version : {1u, 2u, 65'535u})
          seeds.insert(replay::row_seed({request, source, position, version}));
      }
    }
  }
  CHECK(seeds.size() == 3 * 3 * 4 * 3);
  CHECK(!seeds.contains(replay::no_row));
  auto const* columns = replay::detail::columns.data();
  for (std::uint64_t a : seeds) {
    for (std::uint64_t b : seeds) {
      for (int i = 0; i < 36 && a != b; ++i) CHECK(replay::row_word(a, columns, i) != replay::row_word(b, columns, i));
    }
  }
  std::set<std::uint64_t> words_of_one;
  for (int i = 0; i < replay::most_words; ++i) words_of_one.insert(replay::row_word(*seeds.begin(), columns, i));
  CHECK(words_of_one.size() == replay::most_words);
}

TEST_CASE("a position written again gets other bytes, and an unwritten one keeps its own") {
  replay::write_history h{7};
  auto const a0 = h.write(0);
  auto const a1 = h.write(1);
  CHECK(h.write(1) != a1);
  CHECK(h.seed(0) == a0);
  CHECK(h.seed(1) == replay::row_seed({7, 0, 1, 2}));
  CHECK(h.positions() == 2);
  replay::write_history other{8};
  CHECK(other.write(0) != a0);
}

TEST_CASE("the check sees every flipped bit, and addresses where none belong") {
  ebb::page_layout const layout{{16, 8}, 4, 1};
  std::vector<std::byte> memory(3 * static_cast<std::size_t>(layout.stride));
  replay::row_store const rows{memory.data(), layout, replay::detail::columns.data()};
  std::array<std::uint64_t, 4> const seeds{11, 12, 13, replay::no_row};
  std::array<std::int32_t, 4> addresses{9, 0, 6, -1};
  replay::write_rows_body const write{rows, addresses.data(), seeds.data()};
  for (int i = 0; i < 4; ++i) write(ebb::serial_team{}, i);
  auto const wrong = [&] {
    std::uint64_t n = 0;
    replay::check_rows_body{rows, addresses.data(), seeds.data(), 4, &n}(ebb::serial_team{}, 0);
    return n;
  };
  CHECK(wrong() == 0);
  int seen = 0;
  for (auto& byte : memory) {
    for (int bit = 0; bit < 8; ++bit) {
      byte ^= std::byte(1 << bit);
      seen += wrong() == 1;
      byte ^= std::byte(1 << bit);
    }
  }
  CHECK(seen == 3 * 24 * 8);
  addresses[3] = 2;
  CHECK(wrong() == 1);
  addresses[0] = -1;
  CHECK(wrong() == 2);
}

TEST_CASE("calls of admitted sessions go first, each line in order, and one that finds no room stops its line only") {
  replay::waiting_line line;
  std::array<replay::live, 4> sessions{};
  sessions[1].admitted = sessions[3].admitted = true;
  for (auto& s : sessions) line.add(&s);
  std::vector<std::ptrdiff_t> offered;
  line.serve([&](replay::live& s) {
    offered.push_back(&s - sessions.data());
    return &s != &sessions[3];
  });
  CHECK(offered == std::vector<std::ptrdiff_t>{1, 3, 0, 2});
  CHECK(line.size() == 1);
}

TEST_CASE("acceptance depends on session and position only, and the first query is always accepted") {
  long long accepted = 0;
  for (std::int64_t p = 0; p < 10'000; ++p) {
    int const n = replay::accepted_of(3, p, 4, 0.5);
    CHECK((n >= 1 && n <= 4));
    CHECK(n == replay::accepted_of(3, p, 4, 0.5));
    accepted += n;
  }
  CHECK(static_cast<double>(accepted) / 10'000 == doctest::Approx(1.875).epsilon(0.03));
  CHECK(replay::accepted_of(3, 5, 4, 0) == 1);
  CHECK(replay::accepted_of(3, 5, 4, 1) == 4);
}

TEST_CASE("a series stays short and even however long the run") {
  replay::sampler sampler;
  std::vector<replay::sample> series;
  for (long long step = 1; step <= 100'000; ++step) {
    if (sampler.due(step)) sampler.add(series, {.time = static_cast<double>(step)});
    REQUIRE(series.size() < replay::sampler::most);
  }
  CHECK(series.size() >= replay::sampler::most / 2);
  for (std::size_t i = 2; i < series.size(); ++i) {
    CHECK(series[i].time - series[i - 1].time == series[1].time - series[0].time);
  }
}

TEST_CASE("files are whole or absent") {
  scratch_folder const folder;
  auto const file = folder.path / "file";
  CHECK_THROWS_AS(replay::require_writable(folder.path / "none" / "file"), std::runtime_error);
  CHECK_THROWS_AS(replay::require_writable(folder.path), std::runtime_error);
  CHECK_NOTHROW(replay::require_writable(file));
  CHECK(folder.files() == 0);
  folder.file("file.part", "the user's");
  replay::write_whole(file, "text");
  CHECK(folder.text("file") == "text");
  CHECK(folder.text("file.part") == "the user's");
  CHECK(folder.files() == 2);

  // Where no file may grow past 4 bytes, the one that is there stays.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit const four{4, before.rlim_max};
  auto const handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &four);
  CHECK_THROWS_AS(replay::write_whole(file, "longer"), std::runtime_error);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(folder.text("file") == "text");
  CHECK(folder.files() == 2);

  CHECK(replay::with_commas(-1'234'567) == "-1,234,567");
  CHECK(replay::with_commas(999) == "999");
}

TEST_CASE("symbolic links stay, and what they name is written") {
  scratch_folder const folder;
  std::filesystem::create_directory(folder.path / "other");
  std::filesystem::create_symlink("other/file", folder.path / "link");
  std::filesystem::create_symlink(folder.path / "link", folder.path / "again");
  for (char const* text : {"new", "old"}) {  // the first time the link leads nowhere
    CHECK_NOTHROW(replay::require_writable(folder.path / "again"));
    replay::write_whole(folder.path / "again", text);
    CHECK(folder.text("other/file") == text);
  }
  CHECK(std::filesystem::is_symlink(folder.path / "link"));
  CHECK(std::filesystem::is_symlink(folder.path / "again"));
  CHECK(replay::target_of(folder.path / "again") == replay::target_of(folder.path / "other" / ".." / "other" / "file"));
  CHECK(replay::target_of("none.json") == replay::target_of("./none.json"));
}

TEST_CASE("pipes are written into") {
  scratch_folder const folder;
  auto const pipe = folder.path / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_NOTHROW(replay::require_writable(pipe));
  std::string read;
  {
    std::jthread const reader{[&] { read = folder.text("pipe"); }};
    replay::write_whole(pipe, "text");
  }
  CHECK(read == "text");
  CHECK(std::filesystem::is_fifo(pipe));
}

TEST_CASE("a report needs a script and a Python with matplotlib, and is what the script wrote") {
  scratch_folder const folder;
  auto const script = folder.file("script", "cp \"$1\" \"$2\"\n");
  auto const bare = folder.file("bare", "#!/bin/sh\n[ \"$2\" = '' ]\n");
  std::filesystem::permissions(bare, std::filesystem::perms::owner_all);
  auto const lacks = [&](std::string const& python, std::string const& what) -> std::string {
    setenv("EBB_PYTHON", python.c_str(), 1);
    try {
      replay::require_plotting(what);
    } catch (std::runtime_error const& e) {
      return e.what();
    }
    return "";
  };
  CHECK(lacks("true", script) == "");
  CHECK(lacks("true", "none") == "--report-script none: no such file, or it cannot be read");
  CHECK(lacks("true", folder.path).starts_with("--report-script "));
  CHECK(lacks("/none/python", script).starts_with("no report: /none/python cannot be run; "));
  CHECK(lacks(bare, script).starts_with("no report: " + bare + " has no matplotlib; "));
  auto const page = folder.path / "page";
  CHECK_THROWS_AS(replay::write_report(page, bare, "text"), std::runtime_error);
  CHECK(!std::filesystem::exists(page));
  setenv("EBB_PYTHON", "sh", 1);
  replay::write_report(page, script, "text");
  CHECK(folder.text("page") == "text");
  unsetenv("EBB_PYTHON");
}

TEST_CASE("options are numbers in their range, and a report can be left out in two ways") {
  auto const parse = [](std::vector<std::string> words) {
    CLI::App app;
    replay::options o;
    replay::define(app, o);
    std::ranges::reverse(words);  // as CLI11 wants them
    app.parse(words);
    return o;
  };
  CHECK(parse({"--acceptance", "0.25"}).acceptance == 0.25);
  for (char const* name :
       {"--acceptance", "--max-pause", "--arrivals-from", "--arrivals-speed", "--step-us", "--request-us",
        "--launch-us", "--read-us", "--gather-gbs", "--in-gbs", "--out-gbs", "--groups", "--sources"}) {
    for (char const* value : {"nan", "-nan", "inf", "-inf", "many"})
      CHECK_THROWS_AS(parse({name, value}), CLI::ParseError);
  }
  CHECK_THROWS_AS(parse({"--sessions", "0"}), CLI::ParseError);
  CHECK(!parse({}).report.empty());
  CHECK(parse({"--report", ""}).report.empty());
  CHECK(parse({"--no-report", "--report", "page"}).report.empty());
}

TEST_CASE_TEMPLATE("sessions that never fit are counted, the others are played", P, replay::resident, replay::fixed) {
  replay::recording r{"newest", 1'024, 512, 1, 512, {}};
  for (int p = 0; p < r.k; ++p) r.positions.push_back(static_cast<std::uint16_t>(r.k - p));
  replay::workload work;
  for (std::int64_t tokens : {100'000, 1'500, 100'000, 1'000})
    work.plays.push_back({"of " + std::to_string(tokens), 0, {{tokens, 3, 0, 0, 0}}, &r, tokens + 4});
  replay::driver_options o;
  o.sizes = {.frames = 40, .host_pages = 40, .requests = 4, .max_batch = 4, .max_tokens = 1 << 20};
  o.sizes.hot_rows = P::tiers::caches ? 2'048 : 0;
  auto const played = [&] { return replay::driver<P, ebb::serial_space>{{}, work, o}.run(); };
  auto const result = played();
  CHECK(result.requests_refused == 2);
  CHECK(result.requests_finished == 2);
  CHECK(result.rows_wrong == 0);
  CHECK(result.rows_checked > 0);
  CHECK(result.refusal.starts_with("session of 100000 of 100004 tokens can never be admitted: not enough "));
  work.plays = {work.plays[0]};
  auto const nothing = played();
  CHECK(nothing.requests_finished == 0);
  CHECK(replay::to_json(nothing)["series"]["time"].is_array());
}
