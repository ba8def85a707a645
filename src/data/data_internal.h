/* Turns rows into documents: the encoder of one row, the packer, the search for faults. */
#ifndef RH_DATA_DATA_INTERNAL_H
#define RH_DATA_DATA_INTERNAL_H

#include "core/file.h"
#include "core/json.h"
#include "core/philox.h"
#include "data/chat.h"
#include "data/dataset.h"
#include "data/preference.h"

/* A row's tokens before they are cut to length. Reused from row to row. More than 20 members: what holds for all rows, what this row
 * became, and scratch. */
struct data_encoder {
	const struct rh_config *config;
	const struct rh_tokenizer *tokenizer;
	struct rh_objective objective;
	struct rh_task_tokens special;
	int is_truncated;              /* a labelled row lost tokens to max_length */
	struct rh_chat_template *chat; /* the named one; else NULL until a conversation asks for it */
	int is_chat_checked;           /* a conversation needed the template, and the vocabulary has its tokens */
	const char *eos;               /* text appended, NULL: none */
	struct rh_ids ids;
	uint8_t *trained; /* (ids.count) */
	size_t trained_capacity;
	enum data_kind kind; /* of the row */
	int lacks_template;  /* set by the caller: the row is plain strings, and would be a conversation with a template */
	int is_empty;        /* no text, or no answer: nothing of it can be trained */
	int is_masked;       /* only a part counts: an answer */
	int is_prefix_mismatch;
	int has_two_bos;    /* a plain row that begins with BOS, before which the tokenizer puts another one */
	size_t most_ids;    /* how many of the row's first ids are wanted; 0: all */
	int is_cut;         /* the row has more ids */
	int lacks_end;      /* a conversation whose last answer ends with no special token */
	int32_t turn_end;   /* else that token; -1: not known */
	char last_role[32]; /* of the last message of a conversation in which no assistant speaks; empty: in all one does */
	char dropped[32];   /* the part of a message that the rendered text does not hold, such as "system's content"; empty: none */
	int writes_none;    /* the template wrote None where a message has a null */
	/* rows that say which answer is better (encoder_preference.c): `ids` are the documents of both answers, one after the other */
	size_t second, prompt; /* where the second document begins in `ids`, 0: there is one; tokens that are the prompt's, of each */
	int is_good;           /* of a row with one */
	int is_equal;          /* the two answers are the same */
	int has_no_prompt;     /* its prompt is empty */
	int64_t row_room;      /* bytes of memory that encoding it may take; 0: any number */
	int64_t row_bytes;     /* the most bytes that a row took */
	/* scratch */
	struct rh_ids part, both;
	struct rh_text text;
	struct rh_chat_spans spans;
};
int data_encoder_open(const struct rh_config *config, const struct rh_tokenizer *tokenizer, struct data_encoder *out) RH_MUST;
void data_encoder_close(struct data_encoder *encoder);
int data_encode(struct data_encoder *encoder, enum data_kind kind, const json_t *row, const char *where) RH_MUST;

/* Call it before `text`, a row's, is encoded: notes how many bytes that takes. -EINVAL where they are more than row_room. */
int data_encoder_check_room(struct data_encoder *encoder, const char *text, size_t bytes, const char *where) RH_MUST;

/* Rows are encoded for this objective from here on. -EINVAL where the configuration or the tokenizer does not suit it. */
int data_encoder_set_objective(struct data_encoder *encoder, const struct rh_objective *objective) RH_MUST;

/* For objectives other than next tokens (labelled.c): the row's ids, cut to max_length, and its label behind them. */
int data_encode_labelled(struct data_encoder *encoder, const json_t *row, const char *where) RH_MUST;

/* For rows that say which answer is better: DATA_PAIR and the three kinds behind it. */
int data_encode_preference(struct data_encoder *encoder, const json_t *row, const char *where) RH_MUST;

/* Parts of encoder.c, for it. Encodes encoder->text whole into encoder->ids, all trained. */
int data_encode_whole(struct data_encoder *encoder, enum rh_tokens mode, const char *where) RH_MUST;
/* Renders, checks and encodes a conversation so. */
int data_encode_conversation(struct data_encoder *encoder, const json_t *conversation, int needs_spans, const char *where) RH_MUST;
/* Appends a string to encoder->text; and with end-of-sequence, where it does not end with it. */
int data_append(struct data_encoder *encoder, const json_t *string) RH_MUST;
int data_append_ending(struct data_encoder *encoder, const json_t *string) RH_MUST;
/* Of a list of messages: each can be rendered. What is no message would else count as no answer. */
int data_check_answer(const json_t *prompt, const json_t *answer, const char *where) RH_MUST;
/* 1: the string is nothing, or end-of-sequence alone; no assistant says more in the messages. */
int data_is_nothing(const struct data_encoder *encoder, const json_t *answer);
int data_leave_empty(struct data_encoder *encoder) RH_MUST;
struct rh_chat data_chat_of(const struct data_encoder *encoder, const char *where);
/* The row with other messages; NULL: no memory. */
json_t *data_with_messages(const json_t *row, const json_t *messages);

/* 1: there is a template for conversations: chat_template names one, or the model has one. */
int data_encoder_has_template(const struct data_encoder *encoder);

/* Sets lacks_end, turn_end, writes_none and dropped for `messages`, whose rendering encoder->text and encoder->spans hold. */
int data_check_conversation(struct data_encoder *encoder, const json_t *messages) RH_MUST;

/* A set of numbers. */
struct data_hashes {
	uint64_t *slot; /* (capacity), 0 empty */
	size_t count, capacity;
};
/* 1: it was there; 0: it is new. */
int data_hashes_add(struct data_hashes *hashes, uint64_t hash) RH_MUST;
int data_hashes_has(const struct data_hashes *hashes, uint64_t hash);
void data_hashes_free(struct data_hashes *hashes);
uint64_t data_hash_row(const struct data_encoder *encoder); /* never 0 */

/* Counts a row that `where` names; the first few are kept as examples. */
void data_find(struct rh_dataset *set, enum rh_lint lint, const char *where);

/* Keeps the length of the longest row, of which `count` tokens may be but the first. */
int data_note_length(struct rh_dataset *set, const struct data_encoder *row, size_t count) RH_MUST;
/* To what max_length is to be raised: " (the longest row has 512 tokens)"; empty where that is not known, or is no more. */
enum { DATA_LONGEST_BYTES = 64 };
const char *data_longest(const struct rh_dataset *set, int64_t max_length, char out[DATA_LONGEST_BYTES]);

/* 1: the last encoded row loses the end of its last answer if only its first `kept` tokens stay; 0: it does not, or nobody answers; or
 * negative errno. */
int data_answer_is_cut(struct data_encoder *encoder, size_t kept, const char *where) RH_MUST;

/* Best fit decreasing: documents of `length` (each at most `capacity`) into bins of `capacity`. order (documents) receives them bin by bin,
 * first (documents + 1) where each bin begins in it. Longer first, equal ones in file order; of the bins that fit best, the one that
 * has had its space longest: the order TRL's packing gives. */
int data_pack(const int64_t *length, int64_t documents, int64_t capacity, int64_t *order, int64_t *first, int64_t *bins) RH_MUST;

/* What rows must say where the run has a preference. */
static inline enum data_preference data_preference_wanted(const struct rh_config *config)
{
	const struct rh_preference *is = &config->preference;
	return !is->answers ? DATA_NO_PREFERENCE : rh_preference_is_paired(is) ? DATA_IS_PAIR : DATA_IS_JUDGED;
}

/* Does an overlong row continue in another document? Are documents blocks of the rows laid end to end? */
static inline int data_rows_go_on(const struct rh_config *config)
{
	return config->packing && config->packing_strategy != RH_PACKING_BFD;
}
static inline int data_is_wrapped(const struct rh_config *config)
{
	return config->packing && config->packing_strategy == RH_PACKING_WRAPPED;
}

/* Uniform in [0, bound), without bias: number `index` of the stream (seed, site, a). bound is at least 1. */
uint64_t data_draw(uint64_t seed, enum rh_philox_site site, uint32_t a, uint64_t index, uint64_t bound);
/* order (count) becomes a permutation of 0..count-1 by Fisher-Yates. */
void data_shuffle(uint64_t seed, enum rh_philox_site site, uint32_t a, int64_t *order, int64_t count);

#endif
