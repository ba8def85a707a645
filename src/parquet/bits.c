#include "parquet/bits.h"

#include "parquet/thrift.h"

#include <string.h>

/* `width` bits, at most 64, that begin `bit` bits behind `from`, lowest first. They lie before `end`. */
static uint64_t bits_at(const uint8_t *from, const uint8_t *end, uint64_t bit, unsigned width)
{
	const uint8_t *byte = from + bit / 8;
	unsigned shift = bit % 8, have = 0;
	uint64_t value = 0;
	if (end - byte >= 8 && shift + width <= 64) {
		memcpy(&value, byte, sizeof value); /* little-endian, as all that this program runs on */
		value >>= shift;
		return width == 64 ? value : value & (((uint64_t)1 << width) - 1);
	}
	for (; have < width; byte++, shift = 0) {
		unsigned take = 8 - shift < width - have ? 8 - shift : width - have;
		value |= (uint64_t)(*byte >> shift & ((1u << take) - 1)) << have;
		have += take;
	}
	return value;
}

static int begin_run(struct parquet_runs *runs)
{
	struct thrift in = {runs->at, runs->end, 0};
	uint64_t head = thrift_varint(&in), count = head >> 1;
	runs->is_packed = head & 1;
	if (in.is_bad || count > INT32_MAX)
		return -EINVAL;
	size_t room = (size_t)(in.end - in.at), bytes = runs->is_packed ? (size_t)count * runs->width : (runs->width + 7) / 8;
	if (bytes > room && !runs->is_packed)
		return -EINVAL;
	if (!runs->is_packed)
		runs->value = (uint32_t)bits_at(in.at, in.end, 0, runs->width);
	runs->left = runs->is_packed ? (int64_t)count * 8 : (int64_t)count;
	runs->packed = in.at;
	runs->bit = 0;
	runs->at = in.at + (bytes < room ? bytes : room); /* the last run may lack the bytes that no value needs */
	return 0;
}

int parquet_runs_next(struct parquet_runs *runs, uint32_t *out)
{
	if (!runs->width && runs->at == runs->end && !runs->left) {
		*out = 0;
		return 0;
	}
	while (!runs->left)
		if (begin_run(runs))
			return -EINVAL;
	runs->left--;
	*out = runs->value;
	if (!runs->is_packed)
		return 0;
	if (runs->bit + runs->width > (uint64_t)(runs->at - runs->packed) * 8)
		return -EINVAL;
	*out = (uint32_t)bits_at(runs->packed, runs->at, runs->bit, runs->width);
	runs->bit += runs->width;
	return 0;
}

int parquet_deltas_open(const uint8_t *at, const uint8_t *end, int64_t most, struct parquet_deltas *out)
{
	enum { BLOCK_MOST = 1 << 24 };
	struct thrift in = {at, end, 0};
	uint64_t block = thrift_varint(&in), miniblocks = thrift_varint(&in), count = thrift_varint(&in);
	int64_t first = thrift_unzigzag(thrift_varint(&in));
	if (in.is_bad || !block || block > BLOCK_MOST || !miniblocks || block % miniblocks || block / miniblocks % 8 ||
	    count > (uint64_t)most)
		return -EINVAL;
	*out = (struct parquet_deltas){.at = in.at,
	                               .end = in.end,
	                               .left = (int64_t)count,
	                               .value = first,
	                               .miniblocks = (int64_t)miniblocks,
	                               .each = (int64_t)(block / miniblocks),
	                               .miniblock = (int64_t)miniblocks};
	return 0;
}

static int begin_block(struct parquet_deltas *deltas)
{
	struct thrift in = {deltas->at, deltas->end, 0};
	deltas->least = thrift_unzigzag(thrift_varint(&in));
	if (in.is_bad || in.end - in.at < deltas->miniblocks)
		return -EINVAL;
	deltas->width = in.at;
	deltas->at = in.at + deltas->miniblocks;
	deltas->miniblock = 0;
	return 0;
}

/* Bytes of the current miniblock; -EINVAL: they are not there. */
static int64_t miniblock_bytes(const struct parquet_deltas *deltas)
{
	int64_t width = deltas->width[deltas->miniblock], bytes = deltas->each / 8 * width;
	return width > 64 || bytes > deltas->end - deltas->at ? -EINVAL : bytes;
}

int parquet_deltas_next(struct parquet_deltas *deltas, int64_t *out)
{
	if (!deltas->left)
		return -EINVAL;
	deltas->left--;
	if (!deltas->is_begun) {
		deltas->is_begun = 1;
		*out = deltas->value;
		return 0;
	}
	if (deltas->miniblock == deltas->miniblocks && begin_block(deltas))
		return -EINVAL;
	int64_t bytes = miniblock_bytes(deltas);
	if (bytes < 0)
		return -EINVAL;
	unsigned width = deltas->width[deltas->miniblock];
	uint64_t delta = bits_at(deltas->at, deltas->end, (uint64_t)deltas->in_miniblock * width, width);
	deltas->value = (int64_t)((uint64_t)deltas->value + (uint64_t)deltas->least + delta); /* wraps around, as the format has it */
	*out = deltas->value;
	if (++deltas->in_miniblock == deltas->each) {
		deltas->in_miniblock = 0;
		deltas->miniblock++;
		deltas->at += bytes;
	}
	return 0;
}

const uint8_t *parquet_deltas_end(const struct parquet_deltas *deltas)
{
	struct parquet_deltas rest = *deltas;
	for (int64_t left = rest.left - 1; left > 0; left -= rest.each) {
		if (rest.miniblock == rest.miniblocks && begin_block(&rest))
			return NULL;
		int64_t bytes = miniblock_bytes(&rest);
		if (bytes < 0)
			return NULL;
		rest.at += bytes;
		rest.miniblock++;
	}
	return rest.at;
}
