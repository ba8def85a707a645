/* Values: making them, truth, equality, order, containers. */
#include "jinja/jinja_internal.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

struct jinja_value jinja_none(void)
{
	return (struct jinja_value){.kind = JINJA_NONE};
}

struct jinja_value jinja_bool(int is_true)
{
	return (struct jinja_value){.kind = JINJA_BOOL, .content.integer = is_true != 0};
}

struct jinja_value jinja_int(int64_t integer)
{
	return (struct jinja_value){.kind = JINJA_INT, .content.integer = integer};
}

struct jinja_value jinja_float(double real)
{
	return (struct jinja_value){.kind = JINJA_FLOAT, .content.real = real};
}

struct jinja_value jinja_string(struct jinja *j, const char *bytes, size_t length)
{
	struct jinja_string *string = jinja_take(&j->arena, 1, sizeof *string);
	*string = (struct jinja_string){bytes, length};
	return (struct jinja_value){.kind = JINJA_STRING, .content.string = string};
}

struct jinja_value jinja_text(struct jinja *j, const char *text)
{
	return jinja_string(j, text, strlen(text));
}

struct jinja_value jinja_copy(struct jinja *j, const struct jinja_buffer *buffer)
{
	return jinja_string(j, buffer->bytes ? buffer->bytes : "", buffer->length);
}

struct jinja_value jinja_new_list(struct jinja *j, enum jinja_kind kind)
{
	return (struct jinja_value){.kind = kind, .content.list = jinja_take(&j->arena, 1, sizeof(struct jinja_list))};
}

struct jinja_value jinja_new_dict(struct jinja *j, enum jinja_kind kind)
{
	return (struct jinja_value){.kind = kind, .content.dict = jinja_take(&j->arena, 1, sizeof(struct jinja_dict))};
}

static struct jinja_value undefined(struct jinja *j, struct jinja_undefined form)
{
	struct jinja_undefined *copy = jinja_take(&j->arena, 1, sizeof *copy);
	*copy = form;
	return (struct jinja_value){.kind = JINJA_UNDEFINED, .content.undefined = copy};
}

struct jinja_value jinja_undefined_name(struct jinja *j, const char *name)
{
	return undefined(j, (struct jinja_undefined){.name = jinja_text(j, name), .is_plain = 1});
}

struct jinja_value jinja_undefined_of(struct jinja *j, struct jinja_value object, struct jinja_value name)
{
	return undefined(j, (struct jinja_undefined){.object = object, .name = name});
}

struct jinja_value jinja_undefined_hint(struct jinja *j, const char *format, ...)
{
	char *hint = jinja_take(&j->arena, 512, 1);
	va_list args;
	va_start(args, format);
	vsnprintf(hint, 512, format, args);
	va_end(args);
	return undefined(j, (struct jinja_undefined){.hint = hint});
}

/* "dict object", and "None" for None: what Jinja2 calls an object in its messages. */
static const char *describe(struct jinja_value object)
{
	static _Thread_local char name[96];
	if (object.kind == JINJA_NONE)
		return "None";
	const char *module = "";
	if (object.kind == JINJA_NAMESPACE)
		module = "transformers.utils.chat_template_utils.";
	else if (object.kind == JINJA_MACRO || object.kind == JINJA_LOOP || object.kind == JINJA_UNDEFINED)
		module = "jinja2.runtime.";
	else if (object.kind == JINJA_CYCLER || object.kind == JINJA_JOINER)
		module = "jinja2.utils.";
	else if (object.kind == JINJA_STRING && object.is_markup)
		module = "markupsafe.";
	snprintf(name, sizeof name, "%s%s object", module, jinja_type(object));
	return name;
}

noreturn void jinja_raise_undefined(struct jinja *j, struct jinja_value value)
{
	const struct jinja_undefined *form = value.content.undefined;
	struct jinja_buffer text = {0};
	if (form->hint)
		jinja_raise_bytes(&j->arena, form->hint, strlen(form->hint));
	if (form->is_plain) {
		jinja_put_repr(j, &text, form->name);
		jinja_put_text(j, &text, " is undefined");
	} else if (form->name.kind == JINJA_STRING) {
		jinja_put_repr(j, &text, jinja_text(j, describe(form->object)));
		jinja_put_text(j, &text, " has no attribute ");
		jinja_put_repr(j, &text, form->name);
	} else {
		jinja_put_text(j, &text, describe(form->object));
		jinja_put_text(j, &text, " has no element ");
		jinja_put_repr(j, &text, form->name);
	}
	jinja_raise_bytes(&j->arena, text.bytes, text.length);
}

void jinja_need_defined(struct jinja *j, struct jinja_value value)
{
	if (value.kind == JINJA_UNDEFINED)
		jinja_raise_undefined(j, value);
}

void jinja_push(struct jinja *j, struct jinja_list *list, struct jinja_value value)
{
	if (list->count == list->capacity) {
		size_t capacity = list->capacity ? 2 * list->capacity : 4;
		struct jinja_value *wider = jinja_take(&j->arena, capacity, sizeof *wider);
		if (list->count)
			memcpy(wider, list->item, list->count * sizeof *wider);
		list->item = wider;
		list->capacity = capacity;
	}
	list->item[list->count++] = value;
}

struct jinja_value jinja_pair_of(struct jinja *j, struct jinja_value first, struct jinja_value second)
{
	struct jinja_value pair = jinja_new_list(j, JINJA_TUPLE);
	jinja_push(j, pair.content.list, first);
	jinja_push(j, pair.content.list, second);
	return pair;
}

static void need_hashable(struct jinja *j, struct jinja_value key)
{
	if (key.kind == JINJA_LIST || key.kind == JINJA_DICT || key.kind == JINJA_VIEW)
		jinja_raise(&j->arena, "unhashable type: '%s'", jinja_type(key));
	for (size_t i = 0; key.kind == JINJA_TUPLE && i < key.content.list->count; i++) {
		jinja_enter(j);
		need_hashable(j, key.content.list->item[i]);
		jinja_leave(j);
	}
}

struct jinja_value *jinja_dict_find(struct jinja *j, const struct jinja_dict *dict, struct jinja_value key)
{
	need_hashable(j, key);
	jinja_step(j, dict->count / 16);
	for (size_t i = 0; i < dict->count; i++)
		if (jinja_equal(j, dict->pair[i].key, key))
			return &dict->pair[i].value;
	return NULL;
}

struct jinja_value *jinja_dict_find_text(const struct jinja_dict *dict, const char *key)
{
	for (size_t i = 0; i < dict->count; i++)
		if (jinja_is_text(dict->pair[i].key, key))
			return &dict->pair[i].value;
	return NULL;
}

static void add_pair(struct jinja *j, struct jinja_dict *dict, struct jinja_value key, struct jinja_value value)
{
	if (dict->count == dict->capacity) {
		size_t capacity = dict->capacity ? 2 * dict->capacity : 4;
		struct jinja_pair *wider = jinja_take(&j->arena, capacity, sizeof *wider);
		if (dict->count)
			memcpy(wider, dict->pair, dict->count * sizeof *wider);
		dict->pair = wider;
		dict->capacity = capacity;
	}
	dict->pair[dict->count++] = (struct jinja_pair){key, value};
}

void jinja_dict_set(struct jinja *j, struct jinja_dict *dict, struct jinja_value key, struct jinja_value value)
{
	struct jinja_value *at = jinja_dict_find(j, dict, key);
	if (at)
		*at = value;
	else
		add_pair(j, dict, key, value);
}

struct jinja_value jinja_from_json(struct jinja *j, const json_t *json)
{
	struct jinja_value value = {.kind = JINJA_NONE};
	const char *key;
	json_t *member;
	size_t i, length;
	jinja_step(j, 1);
	jinja_enter(j);
	switch (json_typeof(json)) {
	case JSON_NULL:
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		value = jinja_bool(json_is_true(json));
		break;
	case JSON_INTEGER:
		value = jinja_int(json_integer_value(json));
		break;
	case JSON_REAL:
		value = jinja_float(json_real_value(json));
		break;
	case JSON_STRING:
		value = jinja_string(j, json_string_value(json), json_string_length(json));
		break;
	case JSON_ARRAY:
		value = jinja_new_list(j, JINJA_LIST);
		json_array_foreach(json, i, member) jinja_push(j, value.content.list, jinja_from_json(j, member));
		break;
	case JSON_OBJECT:
		if (rh_json_digits(json)) {
			value = jinja_text(j, rh_json_digits(json));
			value.kind = JINJA_WIDE;
			break;
		}
		value = jinja_new_dict(j, JINJA_DICT);
		json_object_keylen_foreach((json_t *)(uintptr_t)json, key, length, member) /* its keys differ already */
		        add_pair(j, value.content.dict, jinja_string(j, key, length), jinja_from_json(j, member));
		break;
	}
	jinja_leave(j);
	return value;
}

const char *jinja_type(struct jinja_value value)
{
	static const char *const names[] = {"missing",
	                                    "Undefined",
	                                    "NoneType",
	                                    "bool",
	                                    "int",
	                                    "float",
	                                    "str",
	                                    "list",
	                                    "tuple",
	                                    "dict",
	                                    "",
	                                    "range",
	                                    "generator",
	                                    "TemplateNamespace",
	                                    "Macro",
	                                    "function",
	                                    "builtin_function_or_method",
	                                    "LoopContext",
	                                    "Cycler",
	                                    "Joiner",
	                                    "int"};
	if (value.kind == JINJA_VIEW)
		return value.content.list->type;
	return value.kind == JINJA_STRING && value.is_markup ? "Markup" : names[value.kind];
}

int jinja_is_text(struct jinja_value value, const char *text)
{
	return value.kind == JINJA_STRING && value.content.string->length == strlen(text) &&
	       !memcmp(value.content.string->bytes, text, value.content.string->length);
}

int jinja_is_number(struct jinja_value value)
{
	return value.kind == JINJA_BOOL || value.kind == JINJA_INT || value.kind == JINJA_FLOAT;
}

double jinja_real(struct jinja_value number)
{
	return number.kind == JINJA_FLOAT ? number.content.real : (double)number.content.integer;
}

int64_t jinja_length(struct jinja_value value)
{
	switch (value.kind) {
	case JINJA_UNDEFINED:
		return 0;
	case JINJA_STRING:
		return jinja_count_codes(*value.content.string);
	case JINJA_LIST:
	case JINJA_TUPLE:
	case JINJA_VIEW:
	case JINJA_RANGE:
		return (int64_t)value.content.list->count;
	case JINJA_DICT:
		return (int64_t)value.content.dict->count;
	case JINJA_LOOP:
		return (int64_t)value.content.loop->list->count;
	default:
		return -1;
	}
}

int jinja_truth(struct jinja *j, struct jinja_value value)
{
	(void)j;
	switch (value.kind) {
	case JINJA_NONE:
	case JINJA_MISSING:
		return 0;
	case JINJA_BOOL:
	case JINJA_INT:
		return value.content.integer != 0;
	case JINJA_FLOAT:
		return value.content.real != 0;
	case JINJA_WIDE:
		return 1;
	case JINJA_STRING:
		return value.content.string->length > 0;
	default:
		return jinja_length(value) != 0;
	}
}

static int lists_equal(struct jinja *j, const struct jinja_list *left, const struct jinja_list *right)
{
	int is_equal = left->count == right->count;
	jinja_enter(j);
	jinja_step(j, left->count / 16);
	for (size_t i = 0; is_equal && i < left->count; i++)
		is_equal = jinja_equal(j, left->item[i], right->item[i]);
	jinja_leave(j);
	return is_equal;
}

static int dicts_equal(struct jinja *j, const struct jinja_dict *left, const struct jinja_dict *right)
{
	int is_equal = left->count == right->count;
	jinja_enter(j);
	for (size_t i = 0; is_equal && i < left->count; i++) {
		const struct jinja_value *other = jinja_dict_find(j, right, left->pair[i].key);
		is_equal = other && jinja_equal(j, left->pair[i].value, *other);
	}
	jinja_leave(j);
	return is_equal;
}

int jinja_equal(struct jinja *j, struct jinja_value left, struct jinja_value right)
{
	if (jinja_is_number(left) && jinja_is_number(right)) {
		if (left.kind == JINJA_FLOAT || right.kind == JINJA_FLOAT)
			return jinja_real(left) == jinja_real(right);
		return left.content.integer == right.content.integer;
	}
	if (left.kind != right.kind)
		return 0;
	switch (left.kind) {
	case JINJA_NONE:
	case JINJA_UNDEFINED:
	case JINJA_MISSING:
		return 1;
	case JINJA_STRING:
	case JINJA_WIDE:
		return left.content.string->length == right.content.string->length &&
		       !memcmp(left.content.string->bytes, right.content.string->bytes, left.content.string->length);
	case JINJA_LIST:
	case JINJA_TUPLE:
	case JINJA_RANGE:
	case JINJA_VIEW:
		return left.content.list == right.content.list || lists_equal(j, left.content.list, right.content.list);
	case JINJA_DICT:
		return left.content.dict == right.content.dict || dicts_equal(j, left.content.dict, right.content.dict);
	case JINJA_METHOD:
		return left.content.method->form == right.content.method->form &&
		       jinja_equal(j, left.content.method->self, right.content.method->self);
	default:
		return left.content.list == right.content.list; /* one object */
	}
}

static int holds(enum jinja_op op, int order)
{
	return op == OP_LT ? order < 0 : op == OP_LE ? order <= 0 : op == OP_GT ? order > 0 : order >= 0;
}

/* The order of two numbers of which one is wide: it lies beyond all those of 64 bits. */
static int compare_wide(struct jinja_value left, struct jinja_value right)
{
	struct jinja_value sides[2] = {left, right};
	int sign[2];
	for (int i = 0; i < 2; i++)
		sign[i] = sides[i].kind != JINJA_WIDE ? 0 : sides[i].content.string->bytes[0] == '-' ? -1 : 1;
	if (sign[0] != sign[1])
		return sign[0] - sign[1];
	const struct jinja_string *a = left.content.string, *b = right.content.string;
	int order = a->length != b->length ? (a->length > b->length) - (a->length < b->length) : memcmp(a->bytes, b->bytes, a->length);
	return sign[0] < 0 ? -order : order;
}

int jinja_ordered(struct jinja *j, enum jinja_op op, struct jinja_value left, struct jinja_value right)
{
	static const char *const signs[] = {[OP_LT] = "<", [OP_LE] = "<=", [OP_GT] = ">", [OP_GE] = ">="};
	jinja_need_defined(j, left);
	jinja_need_defined(j, right);
	if ((left.kind == JINJA_WIDE && (right.kind == JINJA_WIDE || jinja_is_number(right))) ||
	    (right.kind == JINJA_WIDE && jinja_is_number(left)))
		return holds(op, compare_wide(left, right));
	if (jinja_is_number(left) && jinja_is_number(right)) {
		double a = jinja_real(left), b = jinja_real(right);
		if (left.kind == JINJA_FLOAT || right.kind == JINJA_FLOAT)
			return !isnan(a) && !isnan(b) && holds(op, (a > b) - (a < b));
		return holds(op, (left.content.integer > right.content.integer) - (left.content.integer < right.content.integer));
	}
	if (left.kind == JINJA_STRING && right.kind == JINJA_STRING) {
		size_t a = left.content.string->length, b = right.content.string->length;
		int order =
		        memcmp(left.content.string->bytes, right.content.string->bytes, a < b ? a : b); /* UTF-8 sorts as code points do */
		return holds(op, order ? order : (a > b) - (a < b));
	}
	if (left.kind == right.kind && (left.kind == JINJA_LIST || left.kind == JINJA_TUPLE)) {
		const struct jinja_list *a = left.content.list, *b = right.content.list;
		size_t i = 0;
		while (i < a->count && i < b->count && jinja_equal(j, a->item[i], b->item[i]))
			i++;
		if (i == a->count || i == b->count)
			return holds(op, (a->count > b->count) - (a->count < b->count));
		jinja_enter(j);
		int result = jinja_ordered(j, op, a->item[i], b->item[i]);
		jinja_leave(j);
		return result;
	}
	jinja_raise(&j->arena, "'%s' not supported between instances of '%s' and '%.60s'", signs[op], jinja_type(left), jinja_type(right));
}

int jinja_contains(struct jinja *j, struct jinja_value container, struct jinja_value item)
{
	if (container.kind == JINJA_DICT)
		return jinja_dict_find(j, container.content.dict, item) != NULL;
	if (container.kind == JINJA_STRING) {
		if (item.kind != JINJA_STRING)
			jinja_raise(&j->arena, "'in <string>' requires string as left operand, not %s", jinja_type(item));
		jinja_step(j, container.content.string->length / 256);
		return !item.content.string->length || memmem(container.content.string->bytes, container.content.string->length,
		                                              item.content.string->bytes, item.content.string->length) != NULL;
	}
	if (container.kind != JINJA_UNDEFINED && container.kind != JINJA_GENERATOR && jinja_length(container) < 0)
		jinja_raise(&j->arena, "argument of type '%s' is not iterable", jinja_type(container));
	const struct jinja_list *items = jinja_items(j, container);
	jinja_step(j, items->count / 16);
	for (size_t i = 0; i < items->count; i++)
		if (jinja_equal(j, items->item[i], item))
			return 1;
	return 0;
}

struct jinja_list *jinja_items(struct jinja *j, struct jinja_value value)
{
	struct jinja_list *list;
	switch (value.kind) {
	case JINJA_LIST:
	case JINJA_TUPLE:
	case JINJA_VIEW:
	case JINJA_RANGE:
		return value.content.list;
	case JINJA_GENERATOR:
		list = jinja_take(&j->arena, 1, sizeof *list);
		if (value.content.list->count)
			list->item = value.content.list->item + value.content.list->next;
		list->count = list->capacity = value.content.list->count - value.content.list->next;
		value.content.list->next = value.content.list->count;
		return list;
	case JINJA_UNDEFINED:
		return jinja_take(&j->arena, 1, sizeof *list);
	case JINJA_DICT:
		list = jinja_take(&j->arena, 1, sizeof *list);
		for (size_t i = 0; i < value.content.dict->count; i++)
			jinja_push(j, list, value.content.dict->pair[i].key);
		return list;
	case JINJA_STRING:
		list = jinja_take(&j->arena, 1, sizeof *list);
		for (size_t at = 0; at < value.content.string->length;) {
			size_t length = jinja_code_length(value.content.string->bytes + at);
			jinja_push(j, list, jinja_string(j, value.content.string->bytes + at, length));
			at += length;
		}
		return list;
	default:
		jinja_raise(&j->arena, "'%s' object is not iterable", jinja_type(value));
	}
}
