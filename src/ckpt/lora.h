/* An adapter's two factors, found by the weight that they change. */
#ifndef RH_CKPT_LORA_H
#define RH_CKPT_LORA_H

#include "ckpt/peft_tables.h"
#include "ckpt/source_internal.h"

struct lora {
	const char *dir;
	struct rh_peft_config peft;
	struct rh_safetensors *file; /* NULL: no adapter */
	struct rh_peft_tables *tables;
	int64_t used; /* tensors that were read */
	struct lora_factors {
		const struct rh_safetensor *of; /* A's tensor; NULL: nothing yet */
		float *a, *b;                   /* (experts * rank, cols) and (outputs, rank * experts) */
		float *magnitude;               /* (outputs) of DoRA, else NULL */
		size_t a_capacity, b_capacity, magnitude_capacity;
	} read[3]; /* by enum lora_kind: an expert's weights take turns */
};

/* A weight's own factors; or those of all experts of a layer: A's rows expert by expert, in B's columns the expert varies fastest. */
enum lora_kind { LORA_OWN, LORA_GATE_UP, LORA_DOWN };

struct lora_pair {
	const struct rh_safetensor *a, *b, *magnitude; /* magnitude: DoRA's, which rows of the sum have as norms; else NULL */
	int64_t rank; /* 0: the adapter does not touch this weight */
	double scale; /* of B A */
	enum lora_kind kind;
	int64_t experts, expert; /* 1 and 0 where the factors are this weight's alone; expert -1: the weight stacks all experts' matrices */
	int64_t first;           /* row of B that is the weight's row 0 (each expert's, where they are stacked) */
	int64_t outputs;         /* rows of B */
};

/* `dir` and `model` are borrowed until lora_close; dir NULL: an adapter that touches nothing. -EINVAL: a file that its checksum does not
 * fit, or whose tables contradict its configuration. */
int lora_open(const char *dir, const struct rh_model_config *model, struct lora *out) RH_MUST;
void lora_close(struct lora *lora);
/* 1: the weight is the embedding's table or the head's, which peft_tables.h reads. */
int lora_table(const struct rh_model_config *model, const struct source_entry *entry, enum rh_table *which);
/* Not of tables. -EINVAL: shapes or ranks that do not fit the weight; factors of a module that the configuration does not target, or none
 * of one that it does. */
int lora_find(const struct lora *lora, const struct rh_model_config *config, const struct source_entry *entry,
              struct lora_pair *out) RH_MUST;
/* Both factors as fp32, into lora->read[pair->kind], unless they are there. */
int lora_read(struct lora *lora, const struct lora_pair *pair) RH_MUST;
/* The tensor that takes the place of this weight, which the adapter's training changed whole (modules_to_save); NULL: there is none. And
 * its elements [first, first + count) as fp32. */
int lora_find_whole(struct lora *lora, const struct source_entry *entry, const struct rh_safetensor **out) RH_MUST;
int lora_read_whole(const struct lora *lora, const struct rh_safetensor *whole, int64_t first, int64_t count, float *out) RH_MUST;
/* -EINVAL names a tensor that belongs to no weight of `source`, once all its weights were asked for. */
int lora_check_all_used(const struct lora *lora, const struct rh_source *source) RH_MUST;

#endif
