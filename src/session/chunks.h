/* Rows in chunks, in a run. */
#ifndef RH_SESSION_CHUNKS_H
#define RH_SESSION_CHUNKS_H

#include "data/chunks.h"
#include "data/dataset.h"
#include "session/session.h"

/* How this configuration cuts rows for this model; most 0: not at all. */
struct rh_chunk_rule rh_chunk_rule_of(const struct rh_config *config, const struct rh_model *model);
/* -EINVAL: what sequence_chunk cannot be combined with; one line says what. */
int rh_chunks_check(const struct rh_config *config, const struct rh_model *model) RH_MUST;
/* The workload of training on these rows whole becomes that of their chunks. */
int rh_chunks_workload(const struct rh_chunk_rule *rule, const struct rh_dataset *dataset, struct rh_workload *work) RH_MUST;
/* The same of rows that are one document of so many tokens, all of them trained. */
int rh_chunks_workload_synthetic(const struct rh_chunk_rule *rule, struct rh_workload *work) RH_MUST;

/* The shapes of a row's chunks: (work->chunks), the last ones empty where it has fewer. */
int rh_chunks_shapes(const struct rh_chunk_rule *rule, const struct rh_micro_batch *row, int chunks, struct rh_micro_shape *out) RH_MUST;

#endif
