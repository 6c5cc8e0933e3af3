// Sets the formulas that arithmatex has left as \(...\) and \[...\].
for (const place of document.querySelectorAll(".arithmatex")) {
  const text = place.textContent.trim();
  const displayMode = text.startsWith("\\[");
  katex.render(text.slice(2, -2), place, { displayMode, throwOnError: false });
}
