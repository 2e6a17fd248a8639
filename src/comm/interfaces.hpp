// Which of its addresses this host listens on for ranks of other hosts.
#pragma once

#include <string>
#include <vector>

namespace cleave::comm {

/// The address of this host, in digits, from which all of these hosts are reached; empty where they are reached from
/// different ones, or nobody knows how. Nothing is sent.
[[nodiscard]] std::string address_towards(const std::vector<std::string>& hosts);

/// IPv4 addresses of this host by which others may reach it, in digits.
[[nodiscard]] std::vector<std::string> own_addresses();

}  // namespace cleave::comm
