/* object.name and object[key], as the immutable sandbox resolves them. */
#include "jinja/jinja_internal.h"

#include <string.h>

static struct jinja_value raise_unsafe(struct jinja *j, struct jinja_value object, const char *name)
{
	return jinja_undefined_hint(j, "access to attribute '%.80s' of '%s' object is unsafe.", name, jinja_type(object));
}

static const char *const list_changes[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove", NULL};
static const char *const dict_changes[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};

/* Names of the form __x__, which the sandbox refuses: of a dict only those that Python's dict has, as others may be keys. */
static int is_internal(struct jinja_value object, const char *name)
{
	static const char *const all[] = {"class",   "delattr",      "dir",      "doc",           "eq",           "format",
	                                  "ge",      "getattribute", "gt",       "hash",          "init",         "init_subclass",
	                                  "le",      "lt",           "ne",       "new",           "reduce",       "reduce_ex",
	                                  "repr",    "setattr",      "sizeof",   "str",           "subclasshook", "contains",
	                                  "getitem", "iter",         "len",      "setitem",       "delitem",      "or",
	                                  "ior",     "ror",          "reversed", "class_getitem", "getstate"};
	size_t length = strlen(name);
	if (length < 5 || strncmp(name, "__", 2) || strcmp(name + length - 2, "__"))
		return 0;
	for (size_t i = 0; object.kind == JINJA_DICT && i < sizeof all / sizeof *all; i++)
		if (strlen(all[i]) == length - 4 && !memcmp(all[i], name + 2, length - 4))
			return 1;
	return object.kind != JINJA_DICT;
}

/* Whether Python's object has a method `name` that changes it. */
static int would_change(struct jinja_value object, const char *name)
{
	const char *const *names = object.kind == JINJA_LIST ? list_changes : object.kind == JINJA_DICT ? dict_changes : NULL;
	for (; names && *names; names++)
		if (!strcmp(*names, name))
			return 1;
	return 0;
}

static struct jinja_value loop_attribute(struct jinja *j, const struct jinja_loop *loop, const char *name)
{
	int64_t index0 = (int64_t)loop->index0, length = (int64_t)loop->list->count;
	const struct {
		const char *name;
		int64_t value;
	} numbers[] = {
	        {"index", index0 + 1}, {"index0", index0},          {"revindex", length - index0}, {"revindex0", length - index0 - 1},
	        {"length", length},    {"depth", loop->depth0 + 1}, {"depth0", loop->depth0}};
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (!strcmp(numbers[i].name, name))
			return jinja_int(numbers[i].value);
	if (!strcmp(name, "first"))
		return jinja_bool(!index0);
	if (!strcmp(name, "last"))
		return jinja_bool(index0 + 1 == length);
	if (!strcmp(name, "previtem"))
		return index0 ? loop->list->item[index0 - 1] : jinja_undefined_hint(j, "there is no previous item");
	if (!strcmp(name, "nextitem"))
		return index0 + 1 < length ? loop->list->item[index0 + 1] : jinja_undefined_hint(j, "there is no next item");
	return (struct jinja_value){.kind = JINJA_MISSING};
}

/* getattr(object, name), MISSING where Python has none. */
static struct jinja_value own_attribute(struct jinja *j, struct jinja_value object, const char *name)
{
	struct jinja_value value = {.kind = JINJA_MISSING};
	if (object.kind == JINJA_LOOP)
		value = loop_attribute(j, object.content.loop, name);
	if (object.kind == JINJA_NAMESPACE) {
		const struct jinja_value *found = jinja_dict_find_text(object.content.dict, name);
		return found ? *found : value;
	}
	if (object.kind == JINJA_MACRO && !strcmp(name, "name") && object.content.macro->form->name)
		return jinja_text(j, object.content.macro->form->name->name);
	if (object.kind == JINJA_CYCLER && !strcmp(name, "current"))
		return object.content.cycler->list->item[object.content.cycler->next];
	if (object.kind == JINJA_TUPLE && object.content.list->type && (!strcmp(name, "grouper") || !strcmp(name, "list")))
		return object.content.list->item[name[0] == 'l']; /* groupby's */
	if (value.kind != JINJA_MISSING)
		return value;
	const struct jinja_method_form *form = jinja_find_method(object, name);
	if (form) {
		struct jinja_method *method = jinja_take(&j->arena, 1, sizeof *method);
		*method = (struct jinja_method){object, form};
		return (struct jinja_value){.kind = JINJA_METHOD, .content.method = method};
	}
	return would_change(object, name) ? raise_unsafe(j, object, name) : value;
}

/* object[key], MISSING where Python raises a LookupError or TypeError. */
static struct jinja_value own_item(struct jinja *j, struct jinja_value object, struct jinja_value key)
{
	struct jinja_value missing = {.kind = JINJA_MISSING};
	int64_t length, index;
	switch (object.kind) {
	case JINJA_DICT:
		if (key.kind == JINJA_LIST || key.kind == JINJA_DICT)
			return missing;
		const struct jinja_value *found = jinja_dict_find(j, object.content.dict, key);
		return found ? *found : missing;
	case JINJA_STRING:
	case JINJA_LIST:
	case JINJA_TUPLE:
	case JINJA_RANGE:
		if (key.kind != JINJA_INT && key.kind != JINJA_BOOL)
			return missing;
		length = jinja_length(object);
		index = key.content.integer < 0 ? key.content.integer + length : key.content.integer;
		if (index < 0 || index >= length)
			return missing;
		if (object.kind != JINJA_STRING)
			return object.content.list->item[index];
		jinja_step(j, object.content.string->length / 256);
		size_t at = jinja_code_offset(*object.content.string, index);
		return jinja_string(j, object.content.string->bytes + at, jinja_code_length(object.content.string->bytes + at));
	default:
		return missing;
	}
}

struct jinja_value jinja_attribute(struct jinja *j, struct jinja_value object, struct jinja_value name)
{
	jinja_need_defined(j, object);
	const char *text = name.content.string->bytes;
	struct jinja_value value = {.kind = JINJA_MISSING};
	if (!memchr(text, 0, name.content.string->length)) { /* made of symbols and literals, which end with NUL; slices may not */
		char *whole = jinja_take(&j->arena, name.content.string->length + 1, 1);
		memcpy(whole, text, name.content.string->length);
		if (is_internal(object, whole))
			return raise_unsafe(j, object, whole);
		value = own_attribute(j, object, whole);
	}
	if (value.kind == JINJA_MISSING)
		value = own_item(j, object, name);
	return value.kind == JINJA_MISSING ? jinja_undefined_of(j, object, name) : value;
}

struct jinja_value jinja_item(struct jinja *j, struct jinja_value object, struct jinja_value key)
{
	jinja_need_defined(j, object);
	struct jinja_value value = own_item(j, object, key);
	if (value.kind == JINJA_MISSING && key.kind == JINJA_STRING)
		return jinja_attribute(j, object, key);
	return value.kind == JINJA_MISSING ? jinja_undefined_of(j, object, key) : value;
}

static int64_t bound(struct jinja *j, struct jinja_value value, int64_t length, int64_t otherwise, int64_t least, int64_t most)
{
	if (value.kind == JINJA_NONE || value.kind == JINJA_MISSING)
		return otherwise;
	if (value.kind != JINJA_INT && value.kind != JINJA_BOOL)
		jinja_raise(&j->arena, "slice indices must be integers or None or have an __index__ method");
	int64_t at = value.content.integer;
	if (at < 0)
		at = at < -length ? -1 : at + length;
	return at < least ? least : at > most ? most : at;
}

struct jinja_value jinja_slice(struct jinja *j, struct jinja_value object, const struct jinja_value *bounds)
{
	jinja_need_defined(j, object);
	if (object.kind != JINJA_STRING && object.kind != JINJA_LIST && object.kind != JINJA_TUPLE && object.kind != JINJA_RANGE) {
		if (object.kind == JINJA_DICT)
			jinja_raise(&j->arena, "unhashable type: 'slice'");
		jinja_raise(&j->arena, "'%s' object is not subscriptable", jinja_type(object));
	}
	int64_t length = jinja_length(object), step = 1;
	if (bounds[2].kind != JINJA_NONE && bounds[2].kind != JINJA_MISSING) {
		if (bounds[2].kind != JINJA_INT)
			jinja_raise(&j->arena, "slice indices must be integers or None or have an __index__ method");
		step = bounds[2].content.integer;
	}
	if (!step)
		jinja_raise(&j->arena, "slice step cannot be zero");
	step = step < -length - 1 ? -length - 1 : step > length + 1 ? length + 1 : step;
	int back = step < 0;
	int64_t start = bound(j, bounds[0], length, back ? length - 1 : 0, back ? -1 : 0, back ? length - 1 : length);
	int64_t stop = bound(j, bounds[1], length, back ? -1 : length, back ? -1 : 0, back ? length - 1 : length);
	if (object.kind == JINJA_STRING && step == 1) {
		struct jinja_string string = *object.content.string;
		size_t first = jinja_code_offset(string, start);
		struct jinja_string rest = {string.bytes + first, string.length - first};
		jinja_step(j, string.length / 256);
		struct jinja_value part = jinja_string(j, rest.bytes, stop > start ? jinja_code_offset(rest, stop - start) : 0);
		part.is_markup = object.is_markup;
		return part;
	}
	const struct jinja_list *items = jinja_items(j, object);
	struct jinja_value part = jinja_new_list(j, object.kind == JINJA_TUPLE ? JINJA_TUPLE : JINJA_LIST);
	for (int64_t at = start; back ? at > stop : at < stop; at += step) {
		jinja_step(j, 1);
		jinja_push(j, part.content.list, items->item[at]);
	}
	if (object.kind != JINJA_STRING)
		return part;
	struct jinja_buffer text = {0};
	for (size_t i = 0; i < part.content.list->count; i++)
		jinja_put_string(j, &text, *part.content.list->item[i].content.string);
	part = jinja_copy(j, &text);
	part.is_markup = object.is_markup;
	return part;
}
