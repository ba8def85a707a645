/* Filters on lists and other iterables. */
#include "jinja/jinja_internal.h"

#include <string.h>

static struct jinja_value lower(struct jinja *j, struct jinja_value value)
{
	return value.kind == JINJA_STRING ? jinja_recase(j, *value.content.string, CASE_LOWER) : value;
}

/* "a.b.0" of an item, part by part; a number is an index. `otherwise` (may be MISSING) stands for what is undefined. */
static struct jinja_value dig(struct jinja *j, struct jinja_value item, struct jinja_value attribute, struct jinja_value otherwise)
{
	if (attribute.kind == JINJA_MISSING || attribute.kind == JINJA_NONE)
		return item;
	if (attribute.kind != JINJA_STRING)
		return jinja_item(j, item, attribute);
	const struct jinja_string *path = attribute.content.string;
	for (size_t first = 0, end; first <= path->length; first = end + 1) {
		const char *dot = memchr(path->bytes + first, '.', path->length - first);
		end = dot ? (size_t)(dot - path->bytes) : path->length;
		struct jinja_value key = jinja_string(j, path->bytes + first, end - first);
		int64_t index;
		if (end > first && jinja_is_class(*key.content.string, "isdigit") && jinja_parse_int(*key.content.string, 10, &index))
			key = jinja_int(index);
		item = jinja_item(j, item, key);
		if (item.kind == JINJA_UNDEFINED && otherwise.kind != JINJA_MISSING && otherwise.kind != JINJA_NONE)
			item = otherwise;
	}
	return item;
}

static const struct jinja_value missing = {.kind = JINJA_MISSING};

/* What an item is sorted by: a list, since "a,b" names two attributes. */
static struct jinja_value sort_key(struct jinja *j, struct jinja_value item, struct jinja_value attribute, int is_cased)
{
	struct jinja_value key = jinja_new_list(j, JINJA_LIST);
	struct jinja_string rest = attribute.kind == JINJA_STRING ? *attribute.content.string : (struct jinja_string){NULL, 0};
	for (;;) {
		const char *comma = rest.bytes ? memchr(rest.bytes, ',', rest.length) : NULL;
		struct jinja_value name = attribute;
		if (rest.bytes)
			name = jinja_string(j, rest.bytes, comma ? (size_t)(comma - rest.bytes) : rest.length);
		struct jinja_value one = dig(j, item, name, missing);
		jinja_push(j, key.content.list, is_cased ? one : lower(j, one));
		if (!comma)
			return key;
		rest.length -= (size_t)(comma - rest.bytes) + 1;
		rest.bytes = comma + 1;
	}
}

/* Merge sort: stable, and asks only whether a later item is less than an earlier one, as Python does. */
static void sort_pairs(struct jinja *j, struct jinja_pair *pair, struct jinja_pair *scratch, size_t count, int is_reversed)
{
	if (count < 2)
		return;
	size_t half = count / 2, left = 0, right = half;
	sort_pairs(j, pair, scratch, half, is_reversed);
	sort_pairs(j, pair + half, scratch, count - half, is_reversed);
	for (size_t i = 0; i < count; i++) {
		int takes_right = left == half;
		jinja_step(j, 1);
		if (left < half && right < count)
			takes_right = is_reversed ? jinja_ordered(j, OP_LT, pair[left].key, pair[right].key)
			                          : jinja_ordered(j, OP_LT, pair[right].key, pair[left].key);
		scratch[i] = takes_right ? pair[right++] : pair[left++];
	}
	memcpy(pair, scratch, count * sizeof *pair);
}

static struct jinja_value sorted(struct jinja *j, const struct jinja_list *items, struct jinja_value attribute, int is_cased,
                                 int is_reversed)
{
	struct jinja_pair *pair = jinja_take(&j->arena, items->count + 1, sizeof *pair);
	struct jinja_pair *scratch = jinja_take(&j->arena, items->count + 1, sizeof *scratch);
	struct jinja_value out = jinja_new_list(j, JINJA_LIST);
	for (size_t i = 0; i < items->count; i++)
		pair[i] = (struct jinja_pair){sort_key(j, items->item[i], attribute, is_cased), items->item[i]};
	sort_pairs(j, pair, scratch, items->count, is_reversed);
	for (size_t i = 0; i < items->count; i++)
		jinja_push(j, out.content.list, pair[i].value);
	return out;
}

static struct jinja_value do_sort(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	int is_reversed = jinja_argument_bool(j, call, 0, "reverse", 0), is_cased = jinja_argument_bool(j, call, 1, "case_sensitive", 0);
	return sorted(j, jinja_items(j, value), jinja_argument(call, 2, "attribute"), is_cased, is_reversed);
}

static struct jinja_value do_dictsort(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	int is_cased = jinja_argument_bool(j, call, 0, "case_sensitive", 0), is_reversed = jinja_argument_bool(j, call, 2, "reverse", 0);
	struct jinja_string by = jinja_argument_text(j, call, 1, "by", "key");
	int is_value = by.length == 5 && !memcmp(by.bytes, "value", 5);
	struct jinja_list pairs = {0};
	if (!is_value && !(by.length == 3 && !memcmp(by.bytes, "key", 3)))
		jinja_raise(&j->arena, "You can only sort by either \"key\" or \"value\"");
	jinja_need_defined(j, value);
	if (value.kind != JINJA_DICT)
		jinja_raise(&j->arena, "'%s' object has no attribute 'items'", jinja_type(value));
	for (size_t i = 0; i < value.content.dict->count; i++)
		jinja_push(j, &pairs, jinja_pair_of(j, value.content.dict->pair[i].key, value.content.dict->pair[i].value));
	return sorted(j, &pairs, jinja_int(is_value), is_cased, is_reversed);
}

static struct jinja_value do_unique(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	int is_cased = jinja_argument_bool(j, call, 0, "case_sensitive", 0);
	struct jinja_value attribute = jinja_argument(call, 1, "attribute"), out = jinja_new_list(j, JINJA_GENERATOR);
	struct jinja_dict seen = {0};
	const struct jinja_list *items = jinja_items(j, value);
	for (size_t i = 0; i < items->count; i++) {
		struct jinja_value key = dig(j, items->item[i], attribute, missing);
		key = is_cased ? key : lower(j, key);
		if (jinja_dict_find(j, &seen, key))
			continue;
		jinja_dict_set(j, &seen, key, jinja_none());
		jinja_push(j, out.content.list, items->item[i]);
	}
	return out;
}

static struct jinja_value extreme(struct jinja *j, struct jinja_value value, const struct jinja_call *call, enum jinja_op op)
{
	int is_cased = jinja_argument_bool(j, call, 0, "case_sensitive", 0);
	struct jinja_value attribute = jinja_argument(call, 1, "attribute");
	const struct jinja_list *items = jinja_items(j, value);
	size_t best = 0;
	struct jinja_value best_key = missing;
	if (!items->count)
		return jinja_undefined_hint(j, "No aggregated item, sequence was empty.");
	for (size_t i = 0; i < items->count; i++) {
		struct jinja_value key = dig(j, items->item[i], attribute, missing);
		key = is_cased ? key : lower(j, key);
		if (i && !jinja_ordered(j, op, key, best_key))
			continue;
		best = i;
		best_key = key;
	}
	return items->item[best];
}

static struct jinja_value do_min(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return extreme(j, value, call, OP_LT);
}

static struct jinja_value do_max(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return extreme(j, value, call, OP_GT);
}

static struct jinja_value do_sum(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value attribute = jinja_argument(call, 0, "attribute"), sum = jinja_argument(call, 1, "start");
	const struct jinja_list *items = jinja_items(j, value);
	sum = sum.kind == JINJA_MISSING ? jinja_int(0) : sum;
	for (size_t i = 0; i < items->count; i++)
		sum = jinja_binary(j, OP_ADD, sum, dig(j, items->item[i], attribute, missing));
	return sum;
}

static struct jinja_value do_join(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_string between = jinja_argument_text(j, call, 0, "d", "");
	struct jinja_value attribute = jinja_argument(call, 1, "attribute");
	const struct jinja_list *items = jinja_items(j, value);
	struct jinja_buffer out = {0};
	for (size_t i = 0; i < items->count; i++) {
		jinja_step(j, 1);
		if (i)
			jinja_put_string(j, &out, between);
		jinja_put_str(j, &out, dig(j, items->item[i], attribute, missing));
	}
	return jinja_copy(j, &out);
}

static struct jinja_value do_first(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "do_first", 0, 0);
	if (value.kind == JINJA_GENERATOR && value.content.list->next < value.content.list->count)
		return value.content.list->item[value.content.list->next++];
	const struct jinja_list *items = jinja_items(j, value);
	return items->count ? items->item[0] : jinja_undefined_hint(j, "No first item, sequence was empty.");
}

static struct jinja_value do_last(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "do_last", 0, 0);
	if (jinja_length(value) < 0)
		jinja_raise(&j->arena, "'%s' object is not reversible", jinja_type(value));
	const struct jinja_list *items = jinja_items(j, value);
	return items->count ? items->item[items->count - 1] : jinja_undefined_hint(j, "No last item, sequence was empty.");
}

static struct jinja_value copied(struct jinja *j, const struct jinja_list *items, enum jinja_kind kind, int is_reversed)
{
	struct jinja_value out = jinja_new_list(j, kind);
	for (size_t i = 0; i < items->count; i++)
		jinja_push(j, out.content.list, items->item[is_reversed ? items->count - 1 - i : i]);
	jinja_step(j, items->count / 16);
	return out;
}

static struct jinja_value do_list(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "list", 0, 0);
	return copied(j, jinja_items(j, value), JINJA_LIST, 0);
}

static struct jinja_value do_reverse(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "do_reverse", 0, 0);
	if (value.kind != JINJA_STRING && jinja_length(value) < 0 && value.kind != JINJA_GENERATOR)
		jinja_raise(&j->arena, "argument must be iterable");
	struct jinja_value out = copied(j, jinja_items(j, value), value.kind == JINJA_GENERATOR ? JINJA_LIST : JINJA_GENERATOR, 1);
	if (value.kind != JINJA_STRING)
		return out;
	struct jinja_buffer text = {0};
	for (size_t i = 0; i < out.content.list->count; i++)
		jinja_put_string(j, &text, *out.content.list->item[i].content.string);
	return jinja_copy(j, &text);
}

static struct jinja_value do_items(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	jinja_need_count(j, call, "do_items", 0, 0);
	struct jinja_value out = jinja_new_list(j, JINJA_GENERATOR);
	if (value.kind != JINJA_DICT && value.kind != JINJA_UNDEFINED)
		jinja_raise(&j->arena, "Can only get item pairs from a mapping.");
	for (size_t i = 0; value.kind == JINJA_DICT && i < value.content.dict->count; i++)
		jinja_push(j, out.content.list, jinja_pair_of(j, value.content.dict->pair[i].key, value.content.dict->pair[i].value));
	return out;
}

/* The arguments after the first `taken`. */
static struct jinja_call rest_of(const struct jinja_call *call, size_t taken)
{
	struct jinja_call rest = *call;
	if (taken) { /* there may be none */
		rest.argument += taken;
		rest.count -= taken;
	}
	return rest;
}

static struct jinja_value do_map(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value out = jinja_new_list(j, JINJA_GENERATOR);
	if (!jinja_truth(j, value))
		return out;
	struct jinja_value attribute = call->count ? missing : jinja_argument(call, 0, "attribute");
	if (attribute.kind == JINJA_MISSING && !call->count)
		jinja_raise(&j->arena, "map requires a filter argument");
	const struct jinja_filter *filter = NULL;
	if (call->count) {
		struct jinja_string name = jinja_str(j, call->argument[0]);
		filter = jinja_find_filter(name.bytes, name.length);
		if (!filter)
			jinja_raise(&j->arena, "No filter named %s.", jinja_repr(j, call->argument[0]));
	}
	struct jinja_call rest = rest_of(call, call->count ? 1 : 0);
	const struct jinja_list *items = jinja_items(j, value);
	for (size_t i = 0; i < items->count; i++) {
		jinja_step(j, 1);
		jinja_push(j, out.content.list,
		           filter ? filter->call(j, items->item[i], &rest)
		                  : dig(j, items->item[i], attribute, jinja_argument(call, 9, "default")));
	}
	return out;
}

static struct jinja_value select_items(struct jinja *j, struct jinja_value value, const struct jinja_call *call, int by_attribute,
                                       int wanted)
{
	struct jinja_value out = jinja_new_list(j, JINJA_GENERATOR);
	if (!jinja_truth(j, value))
		return out;
	if (by_attribute && !call->count)
		jinja_raise(&j->arena, "Missing parameter for attribute name");
	size_t taken = (size_t)by_attribute;
	const struct jinja_test *test = NULL;
	if (call->count > taken) {
		struct jinja_string name = jinja_str(j, call->argument[taken]);
		test = jinja_find_test(name.bytes, name.length);
		if (!test)
			jinja_raise(&j->arena, "No test named %s.", jinja_repr(j, call->argument[taken]));
		taken++;
	}
	struct jinja_call rest = rest_of(call, taken);
	const struct jinja_list *items = jinja_items(j, value);
	for (size_t i = 0; i < items->count; i++) {
		jinja_step(j, 1);
		struct jinja_value seen = by_attribute ? dig(j, items->item[i], call->argument[0], missing) : items->item[i];
		if ((test ? test->call(j, seen, &rest) : jinja_truth(j, seen)) == wanted)
			jinja_push(j, out.content.list, items->item[i]);
	}
	return out;
}

static struct jinja_value do_select(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return select_items(j, value, call, 0, 1);
}

static struct jinja_value do_reject(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return select_items(j, value, call, 0, 0);
}

static struct jinja_value do_selectattr(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return select_items(j, value, call, 1, 1);
}

static struct jinja_value do_rejectattr(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	return select_items(j, value, call, 1, 0);
}

static struct jinja_value do_batch(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value out = jinja_new_list(j, JINJA_GENERATOR), line = missing, fill = jinja_argument(call, 1, "fill_with");
	int64_t width = jinja_argument_int(j, call, 0, "linecount", 0);
	const struct jinja_list *items = jinja_items(j, value);
	for (size_t i = 0; i < items->count; i++) {
		if (line.kind == JINJA_MISSING || (int64_t)line.content.list->count == width) {
			line = jinja_new_list(j, JINJA_LIST);
			jinja_push(j, out.content.list, line);
		}
		jinja_push(j, line.content.list, items->item[i]);
	}
	while (line.kind != JINJA_MISSING && fill.kind != JINJA_MISSING && fill.kind != JINJA_NONE &&
	       (int64_t)line.content.list->count < width) {
		jinja_step(j, 1);
		jinja_push(j, line.content.list, fill);
	}
	return out;
}

static struct jinja_value do_slice(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value out = jinja_new_list(j, JINJA_GENERATOR), fill = jinja_argument(call, 1, "fill_with");
	int64_t slices = jinja_argument_int(j, call, 0, "slices", 0);
	const struct jinja_list *items = jinja_items(j, value);
	if (!slices)
		jinja_raise(&j->arena, "integer division or modulo by zero");
	int64_t each = (int64_t)items->count / slices, longer = (int64_t)items->count % slices, at = 0;
	for (int64_t i = 0; i < slices; i++) {
		struct jinja_value slice = jinja_new_list(j, JINJA_LIST);
		jinja_step(j, 1);
		for (int64_t k = 0; k < each + (i < longer); k++)
			jinja_push(j, slice.content.list, items->item[at++]);
		if (i >= longer && fill.kind != JINJA_MISSING && fill.kind != JINJA_NONE)
			jinja_push(j, slice.content.list, fill);
		jinja_push(j, out.content.list, slice);
	}
	return out;
}

static struct jinja_value do_groupby(struct jinja *j, struct jinja_value value, const struct jinja_call *call)
{
	struct jinja_value attribute = jinja_argument(call, 0, "attribute"), otherwise = jinja_argument(call, 1, "default");
	int is_cased = jinja_argument_bool(j, call, 2, "case_sensitive", 0);
	const struct jinja_list *items = jinja_items(j, value);
	struct jinja_pair *pair = jinja_take(&j->arena, items->count + 1, sizeof *pair);
	struct jinja_pair *scratch = jinja_take(&j->arena, items->count + 1, sizeof *scratch);
	struct jinja_value out = jinja_new_list(j, JINJA_LIST), group = missing;
	for (size_t i = 0; i < items->count; i++) {
		struct jinja_value key = dig(j, items->item[i], attribute, otherwise);
		pair[i] = (struct jinja_pair){is_cased ? key : lower(j, key), items->item[i]};
	}
	sort_pairs(j, pair, scratch, items->count, 0);
	for (size_t i = 0; i < items->count; i++) {
		if (!i || !jinja_equal(j, pair[i].key, pair[i - 1].key)) {
			group = jinja_new_list(j, JINJA_LIST);
			struct jinja_value both = jinja_pair_of(j, dig(j, pair[i].value, attribute, otherwise), group);
			both.content.list->type = "group";
			jinja_push(j, out.content.list, both);
		}
		jinja_push(j, group.content.list, pair[i].value);
	}
	return out;
}

static const struct jinja_filter filters[] = {
        {"sort", do_sort},
        {"dictsort", do_dictsort},
        {"unique", do_unique},
        {"min", do_min},
        {"max", do_max},
        {"sum", do_sum},
        {"join", do_join},
        {"first", do_first},
        {"last", do_last},
        {"list", do_list},
        {"reverse", do_reverse},
        {"items", do_items},
        {"map", do_map},
        {"select", do_select},
        {"reject", do_reject},
        {"selectattr", do_selectattr},
        {"rejectattr", do_rejectattr},
        {"batch", do_batch},
        {"slice", do_slice},
        {"groupby", do_groupby},
};

const struct jinja_filter *jinja_find_list_filter(const char *name, size_t length)
{
	for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
		if (strlen(filters[i].name) == length && !memcmp(filters[i].name, name, length))
			return &filters[i];
	return NULL;
}
