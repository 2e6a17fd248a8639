// Which package a header outside the project belongs to.
#pragma once

#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace cleave::arch {

using HeaderRules = std::vector<std::pair<std::string, std::regex>>;

/// Headers that only a row of the table can allow, by the name that the table uses.
inline const HeaderRules kByTable = {
    {"mpi", std::regex("mpi(-ext)?\\.h")},
    {"blis", std::regex("(blis.*/)?(blis|cblas)\\.h")},
    {"hdf5", std::regex("(hdf5.*/)?(hdf5(_hl)?\\.h|H5.*\\.h(pp)?)")},
    {"yaml-cpp", std::regex("yaml-cpp/.*")},
};

/// Headers that a component may use when its CMakeLists.txt names the package.
inline const HeaderRules kByPackage = {
    {"nlohmann_json::nlohmann_json", std::regex("nlohmann/.*")},
    {"spdlog::spdlog", std::regex("spdlog/.*")},
    {"CLI11::CLI11", std::regex("CLI/.*")},
    {"PkgConfig::XXHASH", std::regex("(xxhash|xxh_x86dispatch)\\.h")},
};

/// What shows that a component uses a package beyond those: fmt may be included by whoever links `base`, threads by
/// all, and the table's packages have targets.
inline const HeaderRules kShowUse = {
    {"fmt::fmt", std::regex("fmt/.*")},
    {"Threads::Threads", std::regex("thread|mutex|shared_mutex|condition_variable|future|semaphore|pthread\\.h")},
    {"MPI::MPI_CXX", kByTable[0].second},
    {"blis::blis", kByTable[1].second},
    {"hdf5::hdf5", kByTable[2].second},
    {"yaml-cpp::yaml-cpp", kByTable[3].second},
};

}  // namespace cleave::arch
