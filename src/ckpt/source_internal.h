/* The parts of a model source: which tensors a model has, where they lie, and a GGUF's configuration. */
#ifndef RH_CKPT_SOURCE_INTERNAL_H
#define RH_CKPT_SOURCE_INTERNAL_H

#include "ckpt/gguf.h"
#include "ckpt/safetensors.h"
#include "ckpt/source.h"
#include "model/model.h"

struct source_tensor {
	enum rh_dtype dtype; /* as stored */
	int rank;
	int64_t shape[4]; /* outermost first; a GGUF's are turned round */
};

/* A matrix whose scales are tensors of their own (source_scaled.c). */
struct source_scaled {
	enum rh_form form;
	const struct rh_file_in *file; /* of the scales */
	int64_t offset;
	enum rh_dtype dtype;                  /* as they are stored */
	const struct rh_file_in *nested_file; /* of their own scales, F32 */
	int64_t nested_offset;
	float *map;               /* RH_NESTED_MAP numbers; NULL: scales are not nested */
	float factor[RH_FACTORS]; /* of RH_TAIL_FACTORS */
};

/* Value heads of the gated delta rule: the model's lie by key head, a GGUF's by their number within a key head. Rows (an element of a
 * vector) from `first` on, or columns; `size` of a head. per_key 0: they are where they are. */
struct source_tiles {
	int64_t first, size, keys, per_key;
	int are_columns;
};

struct source_entry {
	char *name;   /* Hugging Face's */
	char *stored; /* the file's: a GGUF's, or one that a larger model's files have for it */
	char *module; /* of a layer's linear: as adapters name it, where that is another name; else NULL */
	struct source_tensor tensor;
	const struct rh_file_in *file; /* NULL until found */
	int64_t offset;
	int64_t head_dim;   /* the file permutes rows within heads of this many rows; 0: it does not */
	int64_t rows, cols; /* of the model's tensor */
	int64_t matrices;   /* the model's tensor is this many, one under another; the file stores each transposed. 0: it does not */
	/* of a GGUF */
	int64_t slab, slabs; /* the file's tensor holds `slabs` of the model's, this one as number `slab`; slabs 0: this one alone */
	char *stored2;       /* the model's rows (a bias's elements) are alternately `stored`'s and this tensor's; NULL: all `stored`'s */
	int64_t second; /* the model's rows, in its own order (groups), are `stored`'s up to there and then stored2's; 0: they alternate */
	struct rh_row_groups groups;
	int are_halves; /* not alternately: of each expert the first half are `stored`'s. Such files are written, not read */
	const struct rh_file_in *file2;
	enum rh_dtype dtype2;
	int64_t offset2;
	int has_one_added; /* a norm's weights are stored as 1 + w */
	int is_minus_exp;  /* stored as -exp of the model's */
	struct source_tiles tiles;
	const struct rh_file_in *scale; /* MXFP4 (dtype RH_FP4): the file of the scales, which begin at scale_offset; NULL: not MXFP4 */
	int64_t scale_offset;
	struct source_scaled *scaled; /* NULL: no tensors of scales but MXFP4's */
};

struct source_other {
	const struct rh_safetensors *shard;
	const struct rh_safetensor *tensor;
};

struct source_entries {
	struct source_entry *entry; /* sorted by name once complete */
	size_t count, capacity;
};

/* Every tensor of a model of this configuration, sorted, with the shapes that files of a form give them; types and places are still
 * unknown. The head is left out if tied. */
enum source_form { SOURCE_SAFETENSORS, SOURCE_GGUF };
int source_expect(const struct rh_model_config *config, enum source_form form, struct source_entries *out) RH_MUST;
/* Those of the part's tensors alone. */
void source_entries_keep(struct source_entries *entries, const struct rh_model *part);
void source_entries_free(struct source_entries *entries);
/* NULL: the model has none of that name; no lm_head.weight where the head is tied. */
struct source_entry *source_entries_find(const struct source_entries *entries, const char *name);

/* Of a text model inside a larger one: the other of the two names that a tensor has in files, "language_model.model.X" (on the hub, and as
 * transformers 5 writes it) for "model.language_model.X", "language_model.lm_head.X" for "lm_head.X"; NULL when out of memory. */
char *source_wrapped_name(const char *name);

/* Which row of Hugging Face's order stands at `row` of a GGUF. */
int64_t source_row_of_stored(const struct source_entry *entry, int64_t row);
int source_is_permuted(const struct source_entry *entry); /* a GGUF has its rows in another order */
int64_t source_column_of_stored(const struct source_entry *entry, int64_t column);

/* source.c: a tensor of this name, in *shard; *out is NULL where there is none. `map`: the index's weight_map or NULL. */
int source_find(struct rh_source *source, const char *name, const json_t *map, struct rh_safetensors **shard,
                const struct rh_safetensor **out) RH_MUST;

/* source_scaled.c. Settles an entry whose `matrix` is U8, I8 or E4M3, with the tensors beside it. A matrix may be "<name>_packed". */
enum source_need { SOURCE_OPTIONAL, SOURCE_NEEDED };
int source_settle_scaled(struct rh_source *source, struct source_entry *entry, const json_t *map,
                         const struct rh_safetensor *matrix) RH_MUST;
/* 1: the tensor of that name stands beside such a matrix. */
int source_is_beside(const struct rh_source *source, const char *name);
/* Elements [first, first + count) as F32 or BF16; and the scales and tail of the whole matrix, as core/form.h has them. */
int source_read_scaled(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out) RH_MUST;
int source_scales_of(const struct source_entry *entry, void *scales, void *tail) RH_MUST;

/* The configuration that a GGUF file's metadata and tensors tell of. *out is freed with rh_model_config_free. */
int gguf_model_config(const struct rh_gguf *gguf, struct rh_model_config *out) RH_MUST;

/* The key of the norms' epsilon behind the architecture's name. */
const char *rh_gguf_epsilon_key(const struct rh_family *family);

/* A number under "<architecture>.<key>": *out stays where it is optional and absent. */
enum gguf_need { GGUF_OPTIONAL, GGUF_REQUIRED };
int gguf_arch_int(const struct rh_gguf *gguf, const char *arch, const char *key, enum gguf_need need, int64_t *out) RH_MUST;
int gguf_arch_real(const struct rh_gguf *gguf, const char *arch, const char *key, enum gguf_need need, double *out) RH_MUST;
/* gguf_layers.c: experts, windows and rotary tables of their own, of a family that has such; sizes and scaling are read before. */
int gguf_read_layers(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out) RH_MUST;
/* gguf_kinds.c: of a family whose layers without a window have heads of their own, after windows: what the two kinds of layers have. */
int gguf_read_kinds(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out) RH_MUST;

/* tokenizer_files.c: the end-of-sequence token that dir/tokenizer_config.json names: the caller's (rh_free), NULL where it names none. */
int source_eos_token(const char *dir, char **out) RH_MUST;

/* The tokenizer of the GGUF file at `path`, as files in `dir`. */
int gguf_save_tokenizer(const char *path, const char *dir) RH_MUST;

struct rh_source {
	const struct rh_model *part; /* while it is opened: the tensors that are to be there; NULL: all of the model's */
	char *path;
	struct rh_model_config config;
	enum rh_task_kind task;    /* asked for */
	int64_t num_labels, fresh; /* fresh: tensors that are not there and start at random */
	struct source_entries entries;
	struct rh_gguf *gguf; /* or */
	struct rh_safetensors **shard;
	char **shard_name; /* file names within the directory */
	size_t shards;
	struct source_other *other; /* tensors of a larger model's files that its text model has no use for */
	size_t others, other_capacity;
};

#endif
