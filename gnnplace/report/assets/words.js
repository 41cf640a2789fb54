// Numbers with their units, and elements with their text; text is never taken for markup.
const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const BYTES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

function withUnit(value, steps) {
  const [size, unit] = steps.find(([least]) => Math.abs(value) >= least) || steps[steps.length - 1];
  return `${Number((value / size).toPrecision(4))} ${unit}`;
}
const seconds = value => (value === 0 ? "0 s" : withUnit(value, SECONDS));
const bytes = value => (value === 0 ? "0 B" : withUnit(value, BYTES));
const many = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;
const byId = id => document.getElementById(id);

function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (name) made.className = name;
  return made;
}

function button(text, act) {
  const made = element("button", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function table(headings, rows) {
  const made = element("table"), head = element("tr");
  for (const text of headings) head.append(element("th", text));
  made.append(head);
  for (const cells of rows) {
    const row = element("tr");
    for (const cell of cells) {
      const place = element("td");
      place.append(cell);
      row.append(place);
    }
    made.append(row);
  }
  const wide = element("div", "", "wide");
  wide.append(made);
  return wide;
}

function legend(box, entries) {
  box.replaceChildren(...entries.map(([name, colour]) => {
    const entry = element("span"), patch = element("i");
    patch.style.background = colour;
    entry.append(patch, name);
    return entry;
  }));
}
