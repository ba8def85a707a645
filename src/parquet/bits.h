/* Numbers in fewer bits: runs (RLE and bit packing) and deltas, each read one by one so that no count in the file costs memory. */
#ifndef RH_PARQUET_BITS_H
#define RH_PARQUET_BITS_H

#include "core/error.h"

#include <stdint.h>

/* Runs of one value, and runs of packed values. Without bytes and of width 0 all values are 0. */
struct parquet_runs {
	const uint8_t *at, *end;
	unsigned width; /* bits, at most 32 */
	int64_t left;   /* values of the run */
	int is_packed;  /* the run; its values begin at `packed`, the next one `bit` bits behind */
	uint32_t value; /* of a run that is not packed */
	const uint8_t *packed;
	uint64_t bit;
};
/* 0, or -EINVAL (without a line) where the bytes end, or cannot be. */
int parquet_runs_next(struct parquet_runs *runs, uint32_t *out) RH_MUST;

/* DELTA_BINARY_PACKED. */
struct parquet_deltas {
	const uint8_t *at, *end;
	int64_t left;         /* values to come */
	int64_t value;        /* the last one */
	int is_begun;         /* the first value, which stands in the head, was returned */
	int64_t miniblocks;   /* in a block */
	int64_t each;         /* values in a miniblock */
	int64_t least;        /* delta of the block */
	const uint8_t *width; /* (miniblocks) of the block */
	int64_t miniblock;    /* the current one */
	int64_t in_miniblock; /* values read of it */
};
/* Reads the head; -EINVAL (without a line) where it cannot be, or tells of more than `most` values. */
int parquet_deltas_open(const uint8_t *at, const uint8_t *end, int64_t most, struct parquet_deltas *out) RH_MUST;
int parquet_deltas_next(struct parquet_deltas *deltas, int64_t *out) RH_MUST;
/* Where the bytes of all deltas end; NULL: they do not. */
const uint8_t *parquet_deltas_end(const struct parquet_deltas *deltas);

#endif
