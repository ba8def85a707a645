/* Matrix products of BF16 on AMX's tile registers: 32x32 sums in four tiles of 16x16, two tiles of a (16 rows of 32 k) and two of b (16
 * pairs of k by 16 columns) for each 32 of k. Judged by a product of tiles every 16 cycles: 16 times the multiply-adds of AVX-512.
 * Panels of a are [row][pair of k], of b [pair of k][column]. */
#include "device/cpu/simd/pairs.h"

static void pack_a(const struct gemm_side *side, int64_t lanes, int64_t kc, void *out)
{
	pack_panels(side, lanes, kc, 0, out);
}

static void pack_b(const struct gemm_side *side, int64_t lanes, int64_t kc, void *out)
{
	pack_panels(side, lanes, kc, 1, out);
}

/* 0 to 3: sums; 4, 5: rows of a; 6, 7: columns of b. All are 16 rows of 64 bytes. */
struct tile_config {
	uint8_t palette, start_row, reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
};
static const struct tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

static void tiles(int64_t kc, const void *a, const void *b, int64_t b_step, int64_t b_panel, const struct gemm_target *target)
{
	(void)b_step;
	float product[PANEL * PANEL] __attribute__((aligned(64)));
	_tile_loadconfig(&config);
	for (int64_t j = 0; j < target->cols; j += PANEL) {
		const char *from_a = a, *from_b = (const char *)b + j / PANEL * b_panel * 2;
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
		for (int64_t k = 0; k < kc; k += DEPTH, from_a += 2 * TILE * 4, from_b += 2 * TILE * 4) {
			_tile_loadd(4, from_a, SIDE * 4);
			_tile_loadd(6, from_b, SIDE * 4);
			_tile_dpbf16ps(0, 4, 6);
			_tile_loadd(7, from_b + TILE * 4, SIDE * 4);
			_tile_dpbf16ps(1, 4, 7);
			_tile_loadd(5, from_a + TILE * 4, SIDE * 4);
			_tile_dpbf16ps(2, 5, 6);
			_tile_dpbf16ps(3, 5, 7);
		}
		_tile_stored(0, product, PANEL * 4);
		_tile_stored(1, product + SIDE, PANEL * 4);
		_tile_stored(2, product + SIDE * PANEL, PANEL * 4);
		_tile_stored(3, product + SIDE * PANEL + SIDE, PANEL * 4);
		struct gemm_target part = gemm_target_columns(target, j, PANEL);
		gemm_finish_avx512(product, PANEL, &part);
	}
	_tile_release(); /* a thread switch saves what is in use */
}

const struct gemm_tiles SIMD(gemm_tiles) = {PAIRS_PANELS, .pack_a = pack_a, .pack_b = pack_b, .tiles = tiles};
