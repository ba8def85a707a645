/* A model on disk: its configuration, its tokenizer's files and its tensors by Hugging Face name and in Hugging Face order, from a
 * directory (config.json + sharded safetensors) or a GGUF file. Headers are checked whole when opened; data is mapped, not copied. */
#ifndef RH_CKPT_SOURCE_H
#define RH_CKPT_SOURCE_H

#include "core/form.h"
#include "model/config.h"
#include "token/tokenizer.h"

struct rh_model;
struct rh_source;

/* Opens a model and checks all of it: every tensor that the configuration asks for is there, in a readable type and the right shape, and
 * every shard is whole. Tensors that the model does not need are ignored; a note counts unknown ones. A GGUF's configuration is made
 * from its metadata. */
int rh_source_open(const char *path, struct rh_source **out) RH_MUST;
/* Opens a directory that holds only this part of a model, as one of several boxes saves it. `part`: borrowed during the call. */
int rh_source_open_part(const char *path, const struct rh_model *part, struct rh_source **out) RH_MUST;
/* Opens a model for a task; RH_TASK_UNSET or 0 labels: as the files have it. Where the files are of another task, the head's tensors may
 * be missing: they start at random (rh_source_has). */
int rh_source_open_for(const char *path, enum rh_task_kind task, int64_t num_labels, struct rh_source **out) RH_MUST;
int rh_source_has(const struct rh_source *source, const char *name);
void rh_source_close(struct rh_source *source);

/* Call it when a run has read all that it needs: the files' pages no longer count as this process's memory. */
void rh_source_forget(const struct rh_source *source);

const struct rh_model_config *rh_source_config(const struct rh_source *source);
/* rh_model_config_scale_rope: before anything is made of the configuration. */
int rh_source_scale_rope(struct rh_source *source, const json_t *scaling) RH_MUST;
int rh_source_tokenizer(const struct rh_source *source, struct rh_tokenizer **out) RH_MUST;

/* Converts (dequantises, un-permutes) elements [first, first+count), row-major, whole rows of the last dimension, to F32 or BF16 (nearest
 * even) at `out`. -EINVAL if they are not whole rows of the tensor; -ENOENT, with a line, if the model uses none of that name. From any
 * thread. */
int rh_source_read(const struct rh_source *source, const char *name, int64_t first, int64_t count, enum rh_dtype dtype, void *out) RH_MUST;

/* The form in which a matrix stays packed as the file has it; RH_FORM_PLAIN: in none. `source`: a struct rh_source; for rh_model_pack. */
struct rh_tensor;
enum rh_form rh_source_form(const void *source, const struct rh_tensor *tensor);
/* Of such a matrix the elements of rows [first, first+count), in Hugging Face's order, as they are; and, where scales lie apart, those of
 * the whole matrix and their tail (core/form.h). From any thread. */
int rh_source_read_packed(const struct rh_source *source, const char *name, int64_t first, int64_t count, void *elements) RH_MUST;
int rh_source_read_scales(const struct rh_source *source, const char *name, void *scales, void *tail) RH_MUST;

/* 1: a vector of the gated delta rule (A_log, or its norm's weights), or of a router's choice, that the model's files have in F32, whatever
 * their matrices are in: it is written so, too. */
int rh_source_keeps_f32(const struct rh_source *source, const char *name);

/* How the file names a tensor: as the model does, but where a larger model's files name its text model's otherwise. */
const char *rh_source_file_name(const struct rh_source *source, const char *name);
/* Tensors of a larger model's files (its vision part) that the text model has no use for, or of layers that predict further tokens, and
 * that a model written anew keeps: how many;
 * so many entries that declare them, whose names are borrowed from the source; and their bytes, in that order. */
struct rh_model_out;
struct rh_safetensors_entry;
int64_t rh_source_others(const struct rh_source *source);
void rh_source_others_declare(const struct rh_source *source, struct rh_safetensors_entry *out);
int rh_source_others_write(const struct rh_source *source, struct rh_model_out *out) RH_MUST;

/* Tells whether two models have the same tokenizer: of the Hugging Face directory or GGUF file `model`. 0: it has none (of images). */
int rh_source_tokenizer_hash(const char *model, uint64_t *out) RH_MUST;

/* Copies tokenizer and generation files of the Hugging Face directory `model` into `dir`; from the vocabulary of a GGUF file, writes
 * tokenizer.json and tokenizer_config.json. */
int rh_source_copy_tokenizer(const char *model, const char *dir) RH_MUST;
/* 1: a file of that name is one of those. */
int rh_source_is_of_tokenizer(const char *name);
/* Makes `jinja` the chat template of a directory so copied, whoever reads it: chat_template.jinja, which transformers reads first, and in
 * place of what tokenizer_config.json holds, which older readers and gguf's converter read first; chat_template.json goes. */
int rh_source_set_chat_template(const char *dir, const char *jinja) RH_MUST;
/* Makes the end-of-sequence token that an adapter's tokenizer_config.json names the tokenizer's, where its vocabulary has it. */
int rh_source_take_eos(const char *adapter, struct rh_tokenizer *tokenizer) RH_MUST;
/* Makes the tokenizer's end-of-sequence token that of a directory so copied: of its tokenizer, and the first of the tokens at which
 * generation_config.json, which is made where it is missing, ends a text. The others stay: those it had, else the configuration's. */
int rh_source_set_eos(const char *dir, const struct rh_model_config *config, const struct rh_tokenizer *tokenizer) RH_MUST;

#endif
