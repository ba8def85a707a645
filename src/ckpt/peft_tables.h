/* What an adapter makes of the embedding's table and of the head's: PEFT trains them with factors of their own, or whole, and writes copies
 * of the base's beside the factors. */
#ifndef RH_CKPT_PEFT_TABLES_H
#define RH_CKPT_PEFT_TABLES_H

#include "ckpt/peft.h"
#include "ckpt/source.h"

enum rh_table { RH_TABLE_EMBEDDING, RH_TABLE_HEAD, RH_TABLES };

/* Which modules modules_to_save names: bits. -EINVAL names, after `where`, an entry that is none of them or, for training, one that cannot
 * be trained whole. */
enum rh_saved_use { RH_SAVED_FOUND, RH_SAVED_TRAINED };
enum rh_saved_module { RH_SAVED_EMBEDDING = 1, RH_SAVED_HEAD = 2, RH_SAVED_CLASSIFIER = 4 };
int rh_peft_saved(const struct rh_model_config *model, enum rh_saved_use use, const char *where, char *const *names, size_t count,
                  int *bits) RH_MUST;

struct rh_peft_tables;
/* Of dir/adapter_model.safetensors and its configuration; `peft` and `model` are borrowed until it is closed. -EINVAL names a tensor that
 * contradicts the configuration, or has another shape than its table. */
int rh_peft_tables_open(const char *dir, const struct rh_peft_config *peft, const struct rh_model_config *model,
                        struct rh_peft_tables **out) RH_MUST;
void rh_peft_tables_close(struct rh_peft_tables *tables); /* NULL is legal */
/* Does the adapter change this table? And does it so that two tables come of one? NULL: no. */
int rh_peft_tables_change(const struct rh_peft_tables *tables, enum rh_table which);
int rh_peft_tables_untie(const struct rh_peft_tables *tables);
/* Is what the adapter makes of each table a table? 0: a norm behind the table sees the base's alone. */
int rh_peft_tables_can_merge(const struct rh_peft_tables *tables);
/* How many of the file's tensors are the tables'. */
int64_t rh_peft_tables_count(const struct rh_peft_tables *tables);
/* 0 where the adapter can be trained on: its tables are trained whole or not at all. Else -EINVAL names the tensor. */
int rh_peft_tables_check_trainable(const struct rh_peft_tables *tables) RH_MUST;
/* The factors of an untied table, for a file that keeps them apart: tensors, or NULL where it has none. -EINVAL where the table is not the
 * base's beside them. `is_embedding`: A is (r, rows of the table), B (columns, r); else (r, columns) and (rows, r). */
struct rh_table_factors {
	const struct rh_safetensors *file;
	const struct rh_safetensor *a, *b;
	int64_t rank;
	double scale;
	int is_embedding;
};
int rh_peft_tables_factors(struct rh_peft_tables *tables, const struct rh_source *source, enum rh_table which,
                           struct rh_table_factors *out) RH_MUST;

/* Rows [first, first + count) of the table as the adapter makes it, fp32 (count, hidden_size); of a head that is tied in the source, from
 * the embedding. One thread at a time. */
int rh_peft_tables_read(struct rh_peft_tables *tables, const struct rh_source *source, enum rh_table which, int64_t first, int64_t count,
                        float *out) RH_MUST;

#endif
