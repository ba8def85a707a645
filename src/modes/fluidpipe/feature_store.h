/* In box 2 of mode fluidpipe: the samples received in this epoch, kept so that idle time can train on them again. A sample's entry has
 * its features (the output of the layers below), its positions, its targets and, for each target, a teacher's logits, where there is
 * one.
 *
 * Entries lie in a ring of bytes, reserved once. A new entry takes the room of the oldest ones. With a spill these move to a second
 * ring, of records on NVMe; the oldest there are evicted. Without a spill they are evicted at once. */
#ifndef RH_MODES_FLUIDPIPE_FEATURE_STORE_H
#define RH_MODES_FLUIDPIPE_FEATURE_STORE_H

#include "data/dataset.h"

struct rh_feature_store;

/* samples: ids are 0 to samples - 1. token_bytes: features of a token; teacher_bytes: logits of a target, 0: none. budget_bytes: of all
 * entries; rh_feature_store_bytes adds the index. */
struct rh_feature_store_options {
	int64_t samples, token_bytes, teacher_bytes, budget_bytes;
	int64_t record_bytes;                           /* a record of the spill, at least the largest entry; 0: no spill */
	void (*evicted)(void *context, int64_t sample); /* called for each sample whose entry is dropped */
	void *context;
};
int rh_feature_store_create(const struct rh_feature_store_options *options, struct rh_feature_store **out) RH_MUST;
void rh_feature_store_free(struct rh_feature_store *store);
int64_t rh_feature_store_bytes(int64_t samples, int64_t budget_bytes);
/* The most that the entries of `documents` documents take, of so many tokens and targets in all. */
int64_t rh_feature_store_entry_bytes(const struct rh_feature_store_options *options, int64_t documents, int64_t tokens, int64_t targets);

/* Makes records first_record to first_record + records - 1 of the space, which is borrowed, the second ring. Call it before the first
 * entry. */
struct rh_space;
int rh_feature_store_spill(struct rh_feature_store *store, struct rh_space *space, int first_record, int64_t records) RH_MUST;
/* Host memory that the spill takes. */
int64_t rh_feature_store_spill_bytes(const struct rh_space *space, int64_t record_bytes);

/* A new epoch begins: drops all entries. */
void rh_feature_store_clear(struct rh_feature_store *store);

/* Makes document `document` of a micro-batch the entry of a sample that has none. features: (tokens, token_bytes), teacher: (targets,
 * teacher_bytes), of the whole micro-batch. 1: kept; 0: it is larger than the whole ring. Else the space's fault. */
int rh_feature_store_put(struct rh_feature_store *store, int64_t sample, const struct rh_batch *batch, int64_t document,
                         const void *features, const void *teacher) RH_MUST;
int rh_feature_store_has(const struct rh_feature_store *store, int64_t sample);

/* Makes a micro-batch of the entries of these samples, all of which are there. batch: has room for them; ids become 0, as no layer here
 * reads them. features: (batch->tokens, token_bytes), teacher: (batch->trained, teacher_bytes), with room for as many; NULL: not wanted.
 * The space's faults. */
int rh_feature_store_make(struct rh_feature_store *store, const int64_t *sample, int64_t count, struct rh_batch *batch, void *features,
                          void *teacher) RH_MUST;
/* 0, or the space's fault once more, with its line. */
int rh_feature_store_fault(const struct rh_feature_store *store) RH_MUST;

#endif
