#pragma once
/// Everything for host compilers. With nvcc also include <ebb/cuda/cuda_space.cuh>.

#include <ebb/draft_ring.hpp>
#include <ebb/host/serial_space.hpp>
#include <ebb/metadata/flashinfer_packed.hpp>
#include <ebb/metadata/flashmla.hpp>
#include <ebb/metadata/interleaved.hpp>
#include <ebb/metadata/row_pointers.hpp>
#include <ebb/models.hpp>
#include <ebb/plan.hpp>
#include <ebb/residency.hpp>
#include <ebb/tiers/hot_rows.hpp>
#include <ebb/tiers/lent_pages.hpp>
#include <ebb/tiers/staging_rows.hpp>
