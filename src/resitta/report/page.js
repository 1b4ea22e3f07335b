"use strict";

for (const box of document.querySelectorAll(".commands")) {
  if (!navigator.clipboard) continue;
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  box.append(button);
}

addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
