/* An opened Parquet file: its columns as a tree of nodes, its row groups, and where each column is in the current one. */
#ifndef RH_PARQUET_PARQUET_INTERNAL_H
#define RH_PARQUET_PARQUET_INTERNAL_H

#include "core/file.h"
#include "core/text.h"
#include "parquet/bits.h"
#include "parquet/parquet.h"
#include "parquet/thrift.h"

/* The format's numbers (parquet-format, parquet.thrift). */
enum parquet_type {
	PARQUET_BOOLEAN,
	PARQUET_INT32,
	PARQUET_INT64,
	PARQUET_INT96,
	PARQUET_FLOAT,
	PARQUET_DOUBLE,
	PARQUET_BYTES,
	PARQUET_FIXED_BYTES,
	PARQUET_TYPES
};
enum parquet_codec { PARQUET_PLAIN, PARQUET_SNAPPY, PARQUET_GZIP, PARQUET_LZO, PARQUET_BROTLI, PARQUET_LZ4, PARQUET_ZSTD, PARQUET_LZ4_RAW };
enum parquet_encoding {
	ENCODING_PLAIN = 0,
	ENCODING_OLD_DICTIONARY = 2,
	ENCODING_RUNS = 3,
	ENCODING_BIT_PACKED = 4,
	ENCODING_DELTAS = 5,
	ENCODING_DELTA_LENGTHS = 6,
	ENCODING_DELTA_TEXTS = 7,
	ENCODING_DICTIONARY = 8,
	ENCODING_SPLIT = 9
};

/* What a leaf's values mean. */
enum parquet_meaning {
	MEANS_ITSELF, /* by its type; bytes are a text where they are UTF-8 */
	MEANS_TEXT,
	MEANS_JSON,
	MEANS_UNSIGNED,
	MEANS_DECIMAL,
	MEANS_DATE,
	MEANS_TIME,
	MEANS_TIMESTAMP,
	MEANS_HALF,
	MEANS_NOTHING /* JSON has no form for it */
};

enum parquet_kind { PARQUET_LEAF, PARQUET_STRUCT, PARQUET_LIST, PARQUET_MAP };

/* A column, or a part of one. A level counts what is there (definition) or goes on (repetition), from the root down. */
struct parquet_node {
	char *name;
	enum parquet_kind kind;
	int definition;   /* level from which on it is not null */
	int repetition;   /* LIST, MAP: level of an item that is not the first */
	int item;         /* LIST, MAP: definition level from which on there is an item */
	int child, next;  /* numbers of nodes: its first child (of a LIST the item, of a MAP key and value), its next sibling; -1: none */
	int leaf, leaves; /* the first leaf below it, and how many there are */
};

struct parquet_leaf {
	char *path; /* "messages.content", for errors */
	enum parquet_type type;
	int32_t length; /* PARQUET_FIXED_BYTES */
	enum parquet_meaning meaning;
	int64_t unit;               /* TIME, TIMESTAMP: parts of a second */
	int32_t scale;              /* DECIMAL */
	int definition, repetition; /* the highest levels */
};

/* A leaf's bytes in one row group. */
struct parquet_chunk {
	int64_t at, bytes; /* in the file */
	int64_t entries;   /* values, nulls and empty lists among them */
	enum parquet_codec codec;
};

struct parquet_group {
	int64_t rows;
	size_t chunk; /* the first of its chunks, one a leaf */
};

struct parquet_span {
	const uint8_t *bytes;
	size_t length;
};

/* A buffer, counted in rh_parquet.buffer_bytes. */
struct parquet_buffer {
	uint8_t *bytes;
	size_t capacity;
};

/* Values of a page, of which the next one is read where an entry holds one. */
struct parquet_values {
	enum parquet_encoding encoding;
	const uint8_t *at, *end;
	uint64_t bit;                        /* of booleans */
	struct parquet_runs runs;            /* RUNS; DICTIONARY: numbers of its entries */
	struct parquet_deltas deltas, tails; /* DELTAS; lengths; of DELTA_TEXTS how much of the text before stays, and lengths */
	struct rh_text text;                 /* DELTA_TEXTS: the last one */
	size_t index;                        /* SPLIT */
	uint8_t scratch[8];
};

/* Where reading is in a leaf's chunk. */
struct parquet_column {
	const struct parquet_leaf *leaf;
	enum parquet_codec codec;
	int64_t at, end;      /* in the file: the next page, the chunk's end */
	int64_t entries;      /* of the chunk, not yet read */
	int64_t page_entries; /* of the page, not yet read */
	struct parquet_buffer page, dictionary;
	struct parquet_buffer entry; /* uint32_t (dictionary_entries) PARQUET_BYTES: where each entry's length stands in the dictionary */
	size_t dictionary_entries;
	struct parquet_runs repetitions, definitions;
	struct parquet_values values;
	/* the current entry */
	int is_over; /* there is none */
	int repetition, definition;
};

/* More than 20 members: the file's content, and where reading is in it. */
struct rh_parquet {
	struct rh_file_in *file;
	struct parquet_node *node; /* (nodes), of which 0 is the root */
	size_t nodes, node_capacity;
	struct parquet_leaf *leaf; /* (leaves) */
	size_t leaves, leaf_capacity;
	struct parquet_group *group; /* (groups) */
	size_t groups, group_capacity;
	struct parquet_chunk *chunk; /* (groups * leaves) */
	size_t chunks, chunk_capacity;
	struct parquet_column *column; /* (leaves) */
	size_t next_group;
	int64_t group_rows; /* of the current group, not yet read */
	int64_t row;
	struct parquet_buffer packed;     /* scratch: a page as it is in the file */
	int64_t buffer_bytes, peak_bytes; /* of all buffers: now, and at most while the row was read */
	int64_t value_bytes, text_bytes;  /* of the row */
	int64_t limit;                    /* of all these, for one row */
};

/* schema.c: fills nodes and leaves from the footer's list of schema elements. */
int parquet_schema_read(struct rh_parquet *file, struct thrift *in, const struct thrift_field *field) RH_MUST;

/* footer.c: everything that the file says of itself. -EINVAL where it cannot be read. */
int parquet_footer_read(struct rh_parquet *file) RH_MUST;
/* "%s: the footer is damaged; fetch the file again". */
int parquet_fail_footer(const struct rh_parquet *file) RH_MUST;

/* unpack.c: exactly `room` bytes come out of it; -EINVAL (without a line) otherwise. */
int parquet_unpack(enum parquet_codec codec, const uint8_t *from, size_t length, uint8_t *to, size_t room) RH_MUST;

/* column.c */
int parquet_column_begin(struct rh_parquet *file, struct parquet_column *column, const struct parquet_chunk *chunk) RH_MUST;
void parquet_column_end(struct rh_parquet *file, struct parquet_column *column);
/* The next entry becomes the current one. */
int parquet_column_advance(struct rh_parquet *file, struct parquet_column *column) RH_MUST;
/* -EINVAL: "FILE: column 'NAME' is damaged near row N: WHAT". */
int parquet_fail_column(const struct rh_parquet *file, const struct parquet_column *column, const char *what) RH_MUST;
/* Room for `bytes` in place of what the buffer held. */
int parquet_buffer_reserve(struct rh_parquet *file, struct parquet_buffer *buffer, size_t bytes) RH_MUST;
void parquet_buffer_free(struct rh_parquet *file, struct parquet_buffer *buffer);
/* -EINVAL: the row needs more memory than it may take. */
int parquet_check_room(const struct rh_parquet *file) RH_MUST;

/* values.c: a page's values, encoded so; the dictionary. -EINVAL (without a line) where that cannot be; -ENOTSUP: an unknown encoding. */
int parquet_values_open(struct parquet_column *column, int encoding, const uint8_t *at, const uint8_t *end, int64_t entries) RH_MUST;
int parquet_values_next(struct parquet_column *column, struct parquet_span *out) RH_MUST;
int parquet_dictionary_open(struct rh_parquet *file, struct parquet_column *column, size_t bytes, int64_t entries) RH_MUST;
/* Bytes of a value of this leaf; 0: they differ. */
size_t parquet_leaf_width(const struct parquet_leaf *leaf);

/* cell.c: the value of the column's current entry, which has one. What it takes is counted in the row. */
int parquet_cell_read(struct rh_parquet *file, struct parquet_column *column, json_t **out) RH_MUST;

/* rows.c: counts what a value of the row takes. -EINVAL: the row needs more memory than it may take. */
int parquet_count(struct rh_parquet *file, int64_t value_bytes, int64_t text_bytes) RH_MUST;

#endif
