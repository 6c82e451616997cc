// Questions about runs: `scheme = sd-feel and tau1 >= 5 and accuracy > 0.9`. Parsed, never evaluated as code.
//
//   any  := all { "or" all }      all := one { "and" one }
//   one  := "not" one | "(" any ")" | key operator value | word
//
// A word alone asks whether a run's name contains it. `~` asks whether a value contains a text.

const OPERATORS = {
  "=": (a, b) => same(a, b),
  "!=": (a, b) => !same(a, b),
  "<": (a, b) => typeof a === typeof b && a < b,
  "<=": (a, b) => typeof a === typeof b && a <= b,
  ">": (a, b) => typeof a === typeof b && a > b,
  ">=": (a, b) => typeof a === typeof b && a >= b,
  "~": (a, b) => String(a).toLowerCase().includes(String(b).toLowerCase()),
};
const TOKEN = /\s*(?:(!=|<=|>=|[=<>~()])|"([^"]*)"|'([^']*)'|([^\s=<>~()!"']+))/y;
const ALIASES = { time: "seconds", run: "name", data: "bytes" };

const same = (a, b) => (typeof a === "string" ? a.toLowerCase() === String(b).toLowerCase() : a === b || String(a) === String(b));

function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.trimEnd().length) {
    const at = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (!match) throw new Error(`${text.slice(at).trim().slice(0, 20)} cannot be read: put texts with signs in quotes`);
    const [, sign, double, single, word] = match;
    found.push(sign ? { sign } : { word: double ?? single ?? word, quoted: word === undefined });
  }
  return found;
}

/** @param {{sign?: string, word?: string, quoted?: boolean}} token */
function value({ word = "", quoted }) {
  if (quoted) return word;
  const share = /^(-?[\d.]+)%$/.exec(word);
  if (share) return +share[1] / 100;
  if (word !== "" && Number.isFinite(+word)) return +word;
  return { true: true, false: false }[word] ?? word;
}

// A test of one run; `read(key)` gives its value, or undefined. `keys` collects what was asked for.
export function parse(text) {
  const rest = tokens(text);
  const keys = new Set();
  let place = 0;
  const peek = () => rest[place];
  const next = () => rest[place++];
  const is = (word) => !peek()?.quoted && peek()?.word?.toLowerCase() === word;

  function any() {
    const parts = [all()];
    while (is("or")) { next(); parts.push(all()); }
    return (read) => parts.some((part) => part(read));
  }
  function all() {
    const parts = [one()];
    while (place < rest.length && !is("or") && peek().sign !== ")") {
      if (is("and")) next();
      parts.push(one());
    }
    return (read) => parts.every((part) => part(read));
  }
  function one() {
    const first = next();
    if (!first) throw new Error("something is missing at the end");
    if (first.sign === "(") {
      const inner = any();
      if (next()?.sign !== ")") throw new Error("a bracket is not closed");
      return inner;
    }
    if (first.sign) throw new Error(`${first.sign} needs a key before it, as in accuracy ${first.sign} 0.9`);
    if (!first.quoted && first.word.toLowerCase() === "not") { const inner = one(); return (read) => !inner(read); }
    const sign = peek()?.sign;
    if (!(sign in OPERATORS)) return (read) => String(read("name")).toLowerCase().includes(first.word.toLowerCase());
    next();
    if (!peek() || peek().sign) throw new Error(`${first.word} ${sign} needs a value`);
    const wanted = value(next());
    const key = ALIASES[first.word] ?? first.word;
    keys.add(key);
    return (read) => {
      const found = read(key);
      return found !== undefined && found !== null && OPERATORS[sign](found, wanted);
    };
  }

  if (!rest.length) return { keys, matches: () => true };
  const matches = any();
  if (place < rest.length) throw new Error("a bracket is closed but was never opened");
  return { keys, matches };
}

// The value of a key by its whole name, or by its end where that is clear: tau1 for scheme.tau1.
export function resolve(names, key) {
  if (names.has(key)) return key;
  const found = [...names].filter((each) => each.endsWith(`.${key}`));
  if (found.length > 1) throw new Error(`${key} may be ${found.join(" or ")}: say which`);
  if (!found.length) throw new Error(`no run has a key ${key}`);
  return found[0];
}
