/* From a line of a JSONL file to a document: the reader, the encoder of one row, the packer. */
#ifndef RH_DATA_DATA_INTERNAL_H
#define RH_DATA_DATA_INTERNAL_H

#include "core/file.h"
#include "core/json.h"
#include "core/philox.h"
#include "data/chat.h"
#include "data/dataset.h"

enum data_kind { DATA_COMPLETION, DATA_COMPLETION_CHAT, DATA_MESSAGES, DATA_TEXT };

struct data_reader {
	const char *path, *text_field;
	struct rh_mapping file;
	size_t at; /* bytes read */
	int64_t line;
	int64_t rows;         /* returned so far */
	enum data_kind kind;  /* of the whole file, once rows > 0 */
	struct rh_text where; /* "path:line" of the row last returned */
};
int data_reader_open(const char *path, const char *text_field, struct data_reader *out) RH_MUST;
void data_reader_close(struct data_reader *reader);
/* 1 with the next row (json_decref it), whose keys are there and of the right type; 0 at the end; negative errno. */
int data_reader_next(struct data_reader *reader, json_t **row) RH_MUST;

/* What one row becomes before it is cut to length. Reused from row to row. */
struct data_encoder {
	const struct rh_config *config;
	const struct rh_tokenizer *tokenizer;
	const struct rh_chat_template *chat; /* the named one; else NULL until a conversation asks for it */
	int is_chat_checked;                 /* a conversation asked, and its tokens are there */
	const char *eos;                     /* text appended, NULL: none */
	struct rh_ids ids;
	uint8_t *trained; /* (ids.count) */
	size_t trained_capacity;
	enum data_kind kind; /* of the row */
	int is_masked;       /* only a part counts: an answer */
	int is_prefix_mismatch;
	/* scratch */
	struct rh_ids part;
	struct rh_text text;
	struct rh_chat_spans spans;
};
int data_encoder_open(const struct rh_config *config, const struct rh_tokenizer *tokenizer, struct data_encoder *out) RH_MUST;
void data_encoder_close(struct data_encoder *encoder);
int data_encode(struct data_encoder *encoder, enum data_kind kind, const json_t *row, const char *where) RH_MUST;

/* Whether the row last encoded loses its last answer's end if only its first `kept` tokens stay: 1, 0 (also where nobody answers) or
 * negative errno. */
int data_answer_is_cut(struct data_encoder *encoder, size_t kept, const char *where) RH_MUST;

/* Best fit decreasing: documents of `length` (each at most `capacity`) into bins of `capacity`. order (documents) receives them bin by bin,
 * first (documents + 1) where each bin begins in it. Longer first, equal ones in file order; of the bins that fit best, the one that
 * has had its space longest: the order TRL's packing gives. */
int data_pack(const int64_t *length, int64_t documents, int64_t capacity, int64_t *order, int64_t *first, int64_t *bins) RH_MUST;

/* Uniform in [0, bound), without bias: number `index` of the stream (seed, site, a). bound is at least 1. */
uint64_t data_draw(uint64_t seed, enum rh_philox_site site, uint32_t a, uint64_t index, uint64_t bound);
/* order (count) becomes a permutation of 0..count-1 by Fisher-Yates. */
void data_shuffle(uint64_t seed, enum rh_philox_site site, uint32_t a, int64_t *order, int64_t count);

#endif
