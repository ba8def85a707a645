/* What the two forms of a merged model share: merge.c writes a directory, merge_stored.c the tensors of a GGUF file. */
#ifndef RH_CKPT_MERGE_INTERNAL_H
#define RH_CKPT_MERGE_INTERNAL_H

#include "ckpt/gguf_out.h"
#include "ckpt/lora.h"
#include "ckpt/merge.h"
#include "ckpt/model_out.h"
#include "ckpt/prompts.h"
#include "core/pool.h"

enum { MERGE_PIECE = 1 << 22 }; /* elements in memory at once */

struct merger {
	const struct rh_merge *wanted;
	struct rh_source *source;
	struct rh_model_config config; /* of the model that is written: its head may be one of its own */
	struct source_entries target;  /* its tensors */
	struct lora lora;
	struct rh_model_out *dir;
	struct rh_gguf_out *gguf;
	struct rh_pool *pool; /* of wanted->threads */
	float *piece;         /* (2 * MERGE_PIECE) */
	void *bytes;
	char *chat;                     /* the adapter's template; NULL: the model's own stays */
	struct rh_prompts prompts;      /* of the adapter's training, else of the model's own */
	struct rh_tokenizer *tokenizer; /* with the adapter's end-of-sequence token; NULL: the model's own stays */
};

/* merge.c. The factors that change `entry`, read; pair->rank 0 where the adapter does not touch it. */
int merge_find_factors(struct merger *merger, const struct source_entry *entry, struct lora_pair *pair) RH_MUST;
/* values (cols) += scale * B[row] A; with DoRA the sum gets the row's magnitude as its norm. */
void merge_add_row(const struct merger *merger, const struct lora_pair *pair, int64_t row, int64_t cols, float *values);
/* Writes the first values of the piece, which are the next ones of a tensor of this type. */
int merge_write_piece(struct merger *merger, enum rh_dtype dtype, int64_t values) RH_MUST;
/* Writes the embedding's table or the head's, as the adapter makes it, where `entry` is one that it changes. 1: it was. */
int merge_write_table(struct merger *merger, const struct source_entry *entry, enum rh_dtype dtype) RH_MUST;
/* The tensor of the adapter that takes this one's place, or NULL; -EINVAL: neither the model nor the adapter has it. */
int merge_find_whole(struct merger *merger, const struct source_entry *entry, const struct rh_safetensor **out) RH_MUST;
/* Elements of the tensor, or of what takes its place, as fp32. */
int merge_read(struct merger *merger, const struct source_entry *entry, const struct rh_safetensor *whole, int64_t first, int64_t count,
               float *out) RH_MUST;
/* The line of a tensor whose rows fit no piece. */
int merge_too_wide(const struct merger *merger, const struct source_entry *entry, int64_t width);

/* merge_stored.c. The tensors of a GGUF file: one of them may hold the same matrix of all experts, or half of a tensor of the model. */
struct stored_part {
	const char *name; /* of the file's tensor; borrowed */
	const struct source_entry *entry;
	int half; /* the first or the second of the two tensors that the model's is in the file; 0: it is whole */
	size_t place;
};
struct stored {
	struct stored_part *part; /* one behind the other in the file */
	size_t parts;
	enum rh_dtype dtype;
};
struct stored_list {
	struct stored *tensor; /* in the order of the file */
	size_t count;
	struct stored_part *part; /* of all */
};
int merge_list_stored(struct merger *merger, struct stored_list *out) RH_MUST;
void merge_free_stored(struct stored_list *list);
int merge_declare_stored(struct merger *merger, const struct stored *tensor) RH_MUST;
int merge_write_stored(struct merger *merger, const struct stored *tensor) RH_MUST;

#endif
