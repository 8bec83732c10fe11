// Which kernel tables this build has and this machine can run.
#pragma once

#include <string>
#include <vector>

#include "kernels/table.h"

namespace caudal {

// Names of the tables that can run here, best first; "scalar" is always the last.
std::vector<std::string> available_isas();

// The table called `name`. Throws std::invalid_argument that lists what is available.
const KernelTable& kernel_table(const std::string& name);

// The best table, or the one that CAUDAL_ISA names (decided once).
const KernelTable& default_table();

}  // namespace caudal
