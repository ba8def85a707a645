/* JSON as people write it, over jansson: NUL inside strings is taken, duplicate keys and lone surrogates are
 * refused, and every complaint names the file and the line. */
#ifndef RH_CORE_JSON_H
#define RH_CORE_JSON_H

#include "core/error.h"

#include <jansson.h>
#include <stdint.h>

/* `where` is what a person would call the source ("train.jsonl:17"). *out is the caller's (json_decref). -EINVAL on bad JSON. */
int rh_json_parse(const char *bytes, size_t length, const char *where, json_t **out) RH_MUST;

/* The same for a text of the user's data: whole numbers that 64 bits do not hold keep their digits (rh_json_digits), where rh_json_parse
 * makes them reals. */
int rh_json_parse_data(const char *bytes, size_t length, const char *where, json_t **out) RH_MUST;
/* The digits of such a number, with its sign, borrowed from it; NULL: it is another value. To jansson it is an object. */
const char *rh_json_digits(const json_t *value);

/* The same for a part of a file of data that begins in its line `line`; a complaint names the file's own line. */
int rh_json_parse_at(const char *bytes, size_t length, const char *path, int64_t line, json_t **out) RH_MUST;

/* The same for a whole file; -ENOENT and friends when it cannot be read. */
int rh_json_load(const char *path, json_t **out) RH_MUST;

/* Typed members of `object`. Absent or null: *out is left as it is and 0 is returned, unless `required`. A wrong type is -EINVAL with
 * a line naming `where` and the key. Strings are borrowed from the object. */
enum rh_json_need { RH_JSON_OPTIONAL, RH_JSON_REQUIRED };
int rh_json_int(const json_t *object, const char *key, const char *where, enum rh_json_need need, int64_t *out) RH_MUST;
int rh_json_real(const json_t *object, const char *key, const char *where, enum rh_json_need need, double *out) RH_MUST;
int rh_json_bool(const json_t *object, const char *key, const char *where, enum rh_json_need need, int *out) RH_MUST;
int rh_json_string(const json_t *object, const char *key, const char *where, enum rh_json_need need, const char **out) RH_MUST;

/* Upper bounds on the memory of parsed values beside their texts, until they are freed: an object with room for 8 members or an array with
 * room for 8 items, with its first value; a member, with its share of a table that grows, beside its name; a value, and its place in an
 * array that grows. */
enum { RH_JSON_CONTAINER_BYTES = 208, RH_JSON_MEMBER_BYTES = 128, RH_JSON_VALUE_BYTES = 80 };
/* The same for all values of a JSON text, by the marks that bring them. */
int64_t rh_json_bytes_of_values(const char *json, size_t length);

/* What stands in objects within objects at "key.key.key"; NULL: nothing. Borrowed. And a number there; NaN: there is none. */
const json_t *rh_json_at(const json_t *object, const char *path);
double rh_json_number_at(const json_t *object, const char *path);

/* A measured number as JSON has it: null where it is not finite. A new reference; NULL when out of memory. */
json_t *rh_json_number(double value) RH_MUST;

#endif
