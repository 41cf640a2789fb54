// Light or dark: as the reader's system is, until the switch says otherwise; paper is always light.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const themed = [];
let chosen = "";

function showTheme(name) {
  root.dataset.theme = name;
  const button = document.getElementById("theme");
  button.textContent = name === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Show the page ${name === "dark" ? "light" : "dark"}`);
  for (const draw of themed) draw();
}

const wanted = () => chosen || (dark.matches ? "dark" : "light");
document.getElementById("theme").addEventListener("click", () => {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  showTheme(chosen);
});
dark.addEventListener("change", () => showTheme(wanted()));
addEventListener("beforeprint", () => showTheme("light"));
addEventListener("afterprint", () => showTheme(wanted()));
showTheme(wanted());
