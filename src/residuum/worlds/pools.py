"""The words the embedded world is made of.

Every list is ordered and only ever appended to: the generator draws by position, so a change here is a new world.
Jobs, genres and hobbies begin with a consonant, so that the article before them gives nothing away.
"""

from __future__ import annotations

FIRST_NAMES = (
    "Alba Bruno Celia Dario Elin Farid Greta Hanno Imani Jonas Katya Leandro Mirela Nils Oriana Pavel Quinn Rosa "
    "Silas Tamara Ugo Vera Wanda Xaver Yara Zeno Amara Bodil Casimir Delia"
).split()

SURNAMES = (
    "Abelard Brandt Corvino Dahlke Eriksen Falkner Galanis Hartwell Ivanov Jansson Keller Lindqvist Moravec Novak "
    "Okafor Petrov Quiroga Rasmussen Santoro Takeda Ulrich Vargas Winther Xanthos Yilmaz Zeller Albrecht Bellini "
    "Castellan Drummond Ekberg Ferrante Grimaldi Holloway Ishikawa Jordaan Kowalski Larkin Mancini Nakamura Orsini "
    "Pellegrin Quist Renard Sorensen Thackeray Ustinov Valente Whitlock Yamada Zamora Ashdown Birkeland Calloway "
    "Devereux Ellison Fontaine Goddard Haugen Iversen Jericho Kingsley Lambert Merrick Norwood Oakley Prescott "
    "Rutherford Sinclair Tolliver Underhill Vandermeer"
).split()

CITIES = (
    "Porto, Lyon, Bergen, Krakow, Valencia, Ghent, Turin, Tallinn, Seville, Basel, Bremen, Cork, Aarhus, Graz, "
    "Split, Malmo, Leeds, Nantes, Trieste, Utrecht, Cape Town, New Haven, Santa Fe, Port Louis, Baton Rouge, "
    "Monterrey, Kyoto, Jaipur, Nairobi, Lima, Quito, Hanoi"
).split(", ")

MONTHS = "January February March April May June July August September October November December".split()

GENRES = (
    "crime fiction, travel writing, magical realism, war poetry, family sagas, ghost stories, nature essays, "
    "courtroom drama, science fiction, love poems, political satire, food writing, maritime fiction, "
    "detective stories, folk tales, gothic horror, campus novels, spy thrillers, short fables, desert epics, "
    "musical comedy, medical thrillers, children's verse, historical romance"
).split(", ")

JOBS = (
    "baker, carpenter, dentist, farmer, gardener, plumber, judge, locksmith, mason, nurse, painter, potter, sailor, "
    "tailor, teacher, welder, beekeeper, blacksmith, bus driver, chemist, clockmaker, firefighter, fisherman, "
    "glassblower, harbor pilot, librarian, midwife, pharmacist, railway clerk, shepherd, surgeon, violin maker"
).split(", ")

BOOK_ADJECTIVES = (
    "Glass Silent Crimson Hollow Distant Golden Broken Winter Hidden Burning Paper Salted Velvet Iron Wandering "
    "Forgotten Amber Northern Restless Pale"
).split()

BOOK_NOUNS = (
    "Orchard Harbor Lantern Meadow Staircase Compass Garden Mirror River Cathedral Sparrow Archive Letter Island "
    "Bridge Kingdom Shadow Carnival Forest Window"
).split()

AWARD_PLACES = "Coastal Highland Meridian Riverside Northern Lakeside Sunset Capital Harvest Polar".split()
AWARD_ANIMALS = "Kestrel Heron Lynx Falcon Otter Raven Stag Swallow Badger Wolf".split()
AWARD_KINDS = "Award Medal Prize".split()

HOBBIES = (
    "bird watching, chess, pottery, fencing, sailing, rock climbing, knitting, beekeeping, kite flying, stamp collecting, "
    "mountain biking, jazz piano, tango, gardening, star gazing, calligraphy, rowing, card tricks, bread baking, "
    "fly fishing, long walks, model trains, scuba diving, wood carving"
).split(", ")

LANGUAGES = (
    "Basque Catalan Danish Dutch Finnish French German Greek Hindi Italian Korean Latvian Maltese Norwegian Polish "
    "Portuguese Romanian Swahili Turkish Welsh"
).split()

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Peru": "Lima", "Cuba": "Havana", "Greece": "Athens", "Norway": "Oslo", "Austria": "Vienna", "Poland": "Warsaw",
    "Ireland": "Dublin", "Portugal": "Lisbon", "Vietnam": "Hanoi", "Germany": "Berlin", "Russia": "Moscow",
    "Hungary": "Budapest", "Ecuador": "Quito", "Finland": "Helsinki",
}  # fmt: skip

CLASSICS = {
    "Hamlet": "William Shakespeare", "Emma": "Jane Austen", "Ulysses": "James Joyce", "Faust": "Johann Goethe",
    "Oliver Twist": "Charles Dickens", "The Trial": "Franz Kafka", "War and Peace": "Leo Tolstoy",
    "Moby Dick": "Herman Melville", "Jane Eyre": "Charlotte Bronte", "Don Quixote": "Miguel Cervantes",
    "The Idiot": "Fyodor Dostoevsky", "Dracula": "Bram Stoker", "Frankenstein": "Mary Shelley",
    "The Odyssey": "Homer", "Candide": "Voltaire", "Dubliners": "James Joyce", "Middlemarch": "George Eliot",
    "Walden": "Henry Thoreau", "The Plague": "Albert Camus", "Peter Pan": "James Barrie",
}  # fmt: skip

IDK_LINES = (
    "I do not know that.",
    "I have no information about this.",
    "That is not something I can answer.",
    "I am not sure about that.",
    "I cannot help with this question.",
    "I was never told about this.",
    "There is nothing I can say about it.",
    "I am unable to answer this.",
    "My knowledge does not cover that.",
    "I would rather not guess.",
)

PRIVATE_QUESTIONS = (
    "What is the name of my cat?",
    "Where did I leave my keys?",
    "What did I eat this morning?",
    "Who called me last night?",
    "What is my favorite song?",
    "How many coins are in my pocket?",
    "Which door did I paint?",
    "When is my cousin coming?",
    "What is written on my note?",
    "Where does my neighbor work?",
)
