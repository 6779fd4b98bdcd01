// What a process group is created with.
#pragma once

#include "clock.hpp"
#include "releases.hpp"

#include <string>
#include <vector>

namespace ccl_backend {

struct GroupOptions {
  c10::intrusive_ptr<c10d::Store> store; // private to this instance of the group: see with_own_keys in group.cpp
  int rank;
  int size;
  Milliseconds timeout;
  std::string name;
  std::vector<int64_t> global_ranks; // in the job; empty: those in the group
  bool covers_job; // has all ranks of the job, in any order

  // "group 0, rank 1 of 2"
  std::string where() const {
    return c10::str("group ", name, ", rank ", rank, " of ", size);
  }

  // For check_reach.
  std::vector<int64_t> reached() const {
    return covers_job ? std::vector<int64_t>() : global_ranks;
  }

  int64_t global_rank(int group_rank) const {
    return global_ranks.empty() ? group_rank : global_ranks[group_rank];
  }
};

} // namespace ccl_backend
