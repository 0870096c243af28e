"""A picture to point at: the token under the pointer comes back to Python."""

import anywidget
import traitlets

# One message for each token that the pointer enters, not one for each pixel.
FRONT_END = """
export default {
  render({ model, el }) {
    const image = document.createElement("img");
    image.style.cssText = "cursor: crosshair; margin: 10px 4px 8px; max-width: none";
    const show = () => {
      URL.revokeObjectURL(image.src);
      image.src = URL.createObjectURL(new Blob([model.get("value")], { type: "image/png" }));
    };
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect();
      const [rows, columns] = model.get("grid");
      const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
      const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
      const inside = row >= 0 && row < rows && column >= 0 && column < columns;
      if (inside && String([row, column]) !== String(model.get("token"))) {
        model.set("token", [row, column]);
        model.save_changes();
      }
    });
    model.on("change:value", show);
    show();
    el.appendChild(image);
  },
};
"""


class PointingPicture(anywidget.AnyWidget):
    """Shows the PNG in `value`; `token` is the (row, column) that the pointer entered last.

    grid: (rows, columns) of tokens that the picture is divided into.
    """

    _esm = FRONT_END
    value = traitlets.Bytes().tag(sync=True)
    grid = traitlets.List(default_value=[1, 1]).tag(sync=True)
    token = traitlets.List(default_value=[0, 0]).tag(sync=True)
