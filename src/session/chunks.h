/* Rows in chunks, in a run. */
#ifndef RH_SESSION_CHUNKS_H
#define RH_SESSION_CHUNKS_H

#include "data/chunks.h"
#include "data/dataset.h"
#include "session/session.h"

enum { RH_CHUNK_UNKNOWN = -1 };

/* How rows of this model are cut into chunks of at most so many tokens; 0: not at all. */
struct rh_chunk_rule rh_chunk_rule_of(int64_t most, const struct rh_model *model);
/* -EINVAL: what sequence_chunk cannot be combined with; one line says what. */
int rh_chunks_check(const struct rh_config *config, const struct rh_model *model) RH_MUST;
/* The same of saved_dtype; sets how the model saves. */
int rh_saved_check(const struct rh_config *config, struct rh_model *model) RH_MUST;
/* The workload of training on whole rows becomes that of their chunks, where rows are cut. dataset: NULL, rows are synthetic, and
 * all of their tokens are trained. kept: work->chunk of the checkpoint that the run goes on from, or RH_CHUNK_UNKNOWN.
 * sequence_chunk decides; where it is unset, the checkpoint; else rows stay whole if one device can train on them within max_vram (unset:
 * within what a device has, or of CPU devices within max_ram), and if not, are cut into the longest chunks with which it can. Neither
 * speeds nor the number of devices matter. Rows that no chunk makes fit stay whole, and the plan will say what they need. */
int rh_chunks_choose(struct rh_session *session, const struct rh_dataset *dataset, int64_t kept, struct rh_workload *work) RH_MUST;

/* Classes of chunks, by the most tokens that chunk c of any row has: (chunks). */
void rh_chunks_classify(const int64_t *tokens, int chunks, struct rh_chunk_classes *out);

/* A row of this shape whose tokens are nobody's: one document, or where documents are judged so many of one length. Its batch borrows from
 * it: it must stay where it is. -ENOMEM. */
struct rh_synthetic_row {
	struct rh_micro_batch batch;
	int32_t *start, *head;
};
int rh_synthetic_row_create(const struct rh_micro_shape *shape, struct rh_synthetic_row *out) RH_MUST;
void rh_synthetic_row_free(struct rh_synthetic_row *row);

/* The shapes of a row's chunks: (work->chunks), the last ones empty where it has fewer. */
int rh_chunks_shapes(const struct rh_chunk_rule *rule, const struct rh_micro_batch *row, int chunks, struct rh_micro_shape *out) RH_MUST;

#endif
