#include "data/chunks.h"

#include "core/minmax.h"
#include "device/op.h"

/* FLOPs of a document's first p tokens. */
static double flops_to(const struct rh_chunk_rule *rule, int64_t p)
{
	double n = (double)p, near = rule->window && p > rule->window ? (double)rule->window : n;
	return n * rule->token + n * n / 2 * rule->pair + (near * near / 2 + (n - near) * near) * rule->windowed;
}

/* The place, a multiple of the tile or an end, up to which a document's FLOPs come nearest. */
static int64_t place_of(const struct rh_chunk_rule *rule, int64_t length, double flops)
{
	int64_t low = 0, high = (length + RH_ATTENTION_TILE - 1) / RH_ATTENTION_TILE; /* tiles */
	while (high - low > 1) {
		int64_t middle = low + (high - low) / 2;
		if (flops_to(rule, rh_min(middle * RH_ATTENTION_TILE, length)) <= flops)
			low = middle;
		else
			high = middle;
	}
	int64_t below = rh_min(low * RH_ATTENTION_TILE, length), above = rh_min(high * RH_ATTENTION_TILE, length);
	return flops - flops_to(rule, below) <= flops_to(rule, above) - flops ? below : above;
}

/* A row that is being cut. */
struct row {
	const struct rh_chunk_rule *rule;
	const int32_t *start;
	int64_t documents, end;
	double flops;
};

/* FLOPs of the tokens below a place. */
static double flops_below(const struct row *row, int64_t place)
{
	double flops = 0;
	for (int64_t d = 0; d < row->documents && row->start[d] < place; d++)
		flops += flops_to(row->rule, rh_min(place, row->start[d + 1]) - row->start[d]);
	return flops;
}

/* The place up to which the row's FLOPs come nearest to this number. */
static int64_t place_at(const struct row *row, double flops)
{
	int64_t d = 0;
	for (double own; d + 1 < row->documents; d++, flops -= own)
		if ((own = flops_to(row->rule, row->start[d + 1] - row->start[d])) > flops)
			break;
	return row->start[d] + place_of(row->rule, row->start[d + 1] - row->start[d], flops);
}

/* The last place that is no higher than this token. */
static int64_t place_within(const struct row *row, int64_t token)
{
	int64_t d = 0;
	if (token >= row->end)
		return row->end;
	while (row->start[d + 1] <= token)
		d++;
	return row->start[d] + (token - row->start[d]) / RH_ATTENTION_TILE * RH_ATTENTION_TILE;
}

/* Cuts into about `chunks` of equal FLOPs, none longer than the rule has it: what a chunk would have beyond that, the later ones share.
 * Returns how many there are; *is_held: one was so long. */
static int64_t cut_in(const struct row *row, int64_t chunks, int64_t *cut, int *is_held)
{
	int64_t count = 0, most = row->rule->most ? row->rule->most : row->end;
	*is_held = 0;
	for (cut[0] = row->start[0]; cut[count] < row->end && count < RH_CHUNKS_MOST; count++) {
		double below = flops_below(row, cut[count]);
		int64_t left = rh_max(chunks - count, 1),
		        place = left > 1 ? place_at(row, below + (row->flops - below) / (double)left) : row->end;
		if (place <= cut[count]) /* a chunk is a tile at least */
			place = rh_max(place_within(row, cut[count] + RH_ATTENTION_TILE), cut[count] + 1);
		*is_held |= place - cut[count] > most;
		cut[count + 1] = place - cut[count] > most ? place_within(row, cut[count] + most) : place;
	}
	return count;
}

int64_t rh_chunks_cut(const struct rh_chunk_rule *rule, const int32_t *start, int64_t documents, int64_t *cut)
{
	struct row row = {rule, start, documents, start[documents], 0};
	int64_t tokens = row.end - start[0], least = rule->most ? (tokens + rule->most - 1) / rule->most : 1, most = 2 * least;
	int is_held;
	row.flops = flops_below(&row, row.end);
	while (least < most) { /* the more chunks, the shorter each */
		int64_t middle = least + (most - least) / 2;
		(void)cut_in(&row, middle, cut, &is_held);
		if (is_held)
			least = middle + 1;
		else
			most = middle;
	}
	int64_t count = cut_in(&row, least, cut, &is_held);
	if (cut[count] == row.end)
		return count;
	return rh_fail(-EINVAL, "sequence_chunk: a row of %lld tokens is more than %d chunks of at most %lld; raise it", (long long)tokens,
	               RH_CHUNKS_MOST, (long long)rule->most);
}

/* The first of `count` ascending numbers that is no smaller than this one. */
static int64_t first_at(const int32_t *ascending, int64_t count, int64_t number)
{
	int64_t low = 0, high = count;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (ascending[middle] < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct rh_micro_batch rh_chunk_of(const struct rh_micro_batch *row, const int64_t *cut, int chunk, int chunks,
                                  const struct rh_chunk_room *room)
{
	struct rh_micro_batch out = *row;
	int is_empty = chunk >= chunks;
	int64_t first = is_empty ? cut[chunks] : cut[chunk], end = is_empty ? first : cut[chunk + 1], documents = 0, keys = first, head;
	out.shape = (struct rh_micro_shape){
	        .tokens = end - first, .first = first, .text_longest = row->shape.longest, .chunk = chunk, .chunks = chunks};
	for (int64_t d = 0; d < row->shape.documents; d++) {
		int64_t begin = row->start_q[d], stop = row->start_q[d + 1];
		if (stop <= first || begin >= end)
			continue;
		keys = documents ? keys : begin;
		out.shape.longest = rh_max(out.shape.longest, rh_min(stop, end) - rh_max(begin, first));
		if (room->start_q) {
			room->start_q[documents] = (int32_t)(rh_max(begin, first) - first);
			room->start_k[documents] = (int32_t)(begin - keys);
		}
		documents++;
	}
	if (room->start_q) {
		room->start_q[documents] = (int32_t)(end - first);
		room->start_k[documents] = (int32_t)(end - keys);
	}
	head = first_at(row->head_row, row->shape.head_rows, first);
	out.shape.head_rows = first_at(row->head_row, row->shape.head_rows, end) - head;
	out.shape.judged = row->shape.judged;
	out.shape.judged_rows = row->shape.judged ? row->shape.head_rows : 0;
	out.shape.judged_first = row->shape.judged ? head : 0;
	for (int64_t i = 0; room->head_row && i < out.shape.head_rows; i++)
		room->head_row[i] = (int32_t)(row->head_row[head + i] - first);
	out.shape.documents = documents;
	out.shape.keys = chunks > 1 && !is_empty ? end - keys : 0;
	out.ids += first;
	out.position += first;
	out.type = NULL;
	out.target += head;
	if (room->start_q) {
		out.start_q = room->start_q;
		out.start_k = room->start_k;
		out.head_row = room->head_row;
	}
	return out;
}
