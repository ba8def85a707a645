/* Texts longer than a device takes at once are cut into chunks of tokens, which travel as micro-batches do. */
#ifndef RH_DATA_CHUNKS_H
#define RH_DATA_CHUNKS_H

#include "core/error.h"
#include "model/micro.h"

/* What cuts depend on beside a row's documents: a function of the model and of sequence_chunk, never of rates. FLOPs of a token at place p
 * of its document: token + pair * p + windowed * min(p, window). */
struct rh_chunk_rule {
	int64_t most; /* tokens in a chunk; 0: rows are not cut */
	double token, pair, windowed;
	int64_t window;
};

/* Cuts a row into chunks of about equal FLOPs and at most rule->most tokens: as few as can be, or, where attention makes the first ones so
 * long that more than twice as many would be needed, into about twice as many, of which the first are shorter. start: (documents + 1)
 * first token of each. Cuts lie at multiples of RH_ATTENTION_TILE within the document that they cut. Returns how many chunks there are;
 * cut (RH_CHUNKS_MOST + 1): where each begins, and the last one ends. -EINVAL: there would be more; one line says so. */
int64_t rh_chunks_cut(const struct rh_chunk_rule *rule, const int32_t *start, int64_t documents, int64_t *cut) RH_MUST;

/* A row's arrays of one chunk, as offsets into the row's, and what its own arrays hold. */
struct rh_chunk_room {
	int32_t *start_q, *start_k,
	        *head_row; /* (documents + 1), (documents + 1), (head_rows) of the chunk; NULL: shapes alone are wanted */
};
/* Makes chunk number `chunk` of `chunks` of a whole row's micro-batch (its head_row ascending) of a row that is cut at these places, with
 * arrays of its own in *room; results keep their places, and so do judged documents, which each chunk has whole. chunk >= chunks: an empty
 * one. */
struct rh_micro_batch rh_chunk_of(const struct rh_micro_batch *row, const int64_t *cut, int chunk, int chunks,
                                  const struct rh_chunk_room *room);

#endif
